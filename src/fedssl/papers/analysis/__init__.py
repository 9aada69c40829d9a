"""Analyses of runs: trajectories, feature maps, drift, theory."""
