"""Commands, jobs, and the one device thread that runs them."""
