"""The CUDA backend: torch operations and Triton kernels for the same jobs and specs as on a CPU.

Triton's interpreter (TRITON_INTERPRET=1) runs the kernels on a CPU; only CUDA graphs (`program`) need a GPU.
"""
