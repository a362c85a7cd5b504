"""Measurements, run by hand. Each compares its variants in turns within one run."""
