"""Measurements. Run by hand; each compares its variants in turns within one run."""
