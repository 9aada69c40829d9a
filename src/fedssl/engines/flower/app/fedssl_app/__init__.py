"""fedssl as a Flower app; ServerApp and ClientApp are in the installed package."""
