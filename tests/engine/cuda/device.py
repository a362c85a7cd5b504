"""The device that the tests of the GPU engine run on."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# What the interpreter computes with; bfloat16 it does not.
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
