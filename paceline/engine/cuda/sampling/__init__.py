"""Sampling on a GPU in fixed shapes."""
