"""Sampling on a GPU in fixed shapes: tables of specs and samples, and kernels between them."""
