"""Samples from logits on a GPU, in fixed shapes: what to draw as a table, kernels, and what was drawn as a table."""
