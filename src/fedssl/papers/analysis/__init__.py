"""What runs are looked at with: trajectories, feature maps, drift, theory."""
