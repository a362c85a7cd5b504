"""Holds every generation's context and runs the speculation loop."""
