"""What the test suite needs for itself: a guard for processes, waiting, and a list of skipped tests."""
