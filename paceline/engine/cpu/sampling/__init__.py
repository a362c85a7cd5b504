"""Sampler backends with CPU kernels."""
