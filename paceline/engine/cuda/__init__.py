"""The CUDA backend: torch operations and Triton kernels, which Triton's interpreter also runs on a CPU."""
