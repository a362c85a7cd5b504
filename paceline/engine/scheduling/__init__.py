"""Commands, jobs and the one device thread that carries them out."""
