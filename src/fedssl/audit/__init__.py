"""Attacks on a finished run: `fedssl audit`."""
