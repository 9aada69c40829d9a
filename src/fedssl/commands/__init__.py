"""The words after `fedssl`: one file for each group of commands."""
