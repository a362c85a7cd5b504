"""The device that the tests of the GPU engine run on."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
