"""Where there is no GPU, Triton's interpreter runs the kernels: decided before any of them is imported."""

import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # `make test` puts it there.
    sys.path.append(str(Path(__file__).parents[3] / ".triton"))
