"""The CPU backend: forward, cache and samplers, with kernels that Numba compiles from Python."""
