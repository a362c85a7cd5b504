"""Sampling on a GPU in fixed shapes: a table of sample specs, kernels, and a table of samples."""
