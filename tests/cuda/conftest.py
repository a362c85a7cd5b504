"""Where there is no GPU, Triton's interpreter runs the kernels: decided before any of them is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
