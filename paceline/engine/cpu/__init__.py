"""The CPU backend, with kernels that Numba compiles."""
