"""What an attacker learns from a finished run: `fedssl audit`."""
