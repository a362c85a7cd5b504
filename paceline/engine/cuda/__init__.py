"""The CUDA backend: the engine on an NVIDIA GPU, for the same jobs and sample specs as on a CPU.

Everything here is torch operations and Triton kernels. Triton's interpreter runs the kernels on a CPU as well
(TRITON_INTERPRET=1), so the tests need no GPU. Only the capture of graphs (`program`) needs one.
"""
