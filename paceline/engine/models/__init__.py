"""Weights and their shapes, whichever device they go to."""
