"""The CPU backend: the forward, its cache and its samplers, with kernels that Numba compiles from Python."""
