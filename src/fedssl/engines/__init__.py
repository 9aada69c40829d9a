"""Who runs the loop, and where state lives."""
