"""The coordinator: holds every generation's context and runs its loop. Run it with `python -m coordinator`."""
