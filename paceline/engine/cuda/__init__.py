"""The engine on an NVIDIA GPU: the same jobs and draws, other arrays.

Everything here is torch operations and Triton kernels, which run on a CPU too, through Triton's interpreter
(TRITON_INTERPRET=1): so the tests need no GPU. What does is capturing graphs (`graphs`), and speed.
"""
