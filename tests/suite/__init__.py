"""Helpers of the test suite: a guard for processes, waiting, and a list of skipped tests."""
