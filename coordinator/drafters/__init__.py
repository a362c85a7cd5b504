"""Drafters, which make proposals: one file each."""
