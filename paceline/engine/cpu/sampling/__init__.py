"""Samplers of the CPU kernels."""
