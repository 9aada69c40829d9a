"""Tables, plots and terminal output of runs."""
