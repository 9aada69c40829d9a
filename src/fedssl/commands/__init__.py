"""The subcommands of `fedssl`, one file per group."""
