"""fedssl as a Flower app: both ends are in the installed package."""
