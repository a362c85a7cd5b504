"""Faults on purpose: each fault at each place in each phase of a generation, under one and many of them (`python -m tests.faults`)."""
