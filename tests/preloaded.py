"""What services import, for the process that they are forked from: nothing here starts a thread or reads a setting.

Not paceline.engine.threads, nor what imports it: it starts Numba's threads, and OpenMP's do not survive a fork.
"""

from paceline.serving.main import prepare_process

prepare_process()

import numba  # noqa: E402, F401

# Reads the sources of all models of transformers.
from transformers import AutoConfig  # noqa: E402, F401

import coordinator.servicer  # noqa: E402, F401
import gateway.app  # noqa: E402, F401
import paceline.engine.models.weights  # noqa: E402, F401
