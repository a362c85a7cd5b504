"""The array type of everything that is no torch tensor."""

from typing import Any

from numpy.typing import NDArray

# Shapes and dtypes stand in a comment where an array is declared.
Array = NDArray[Any]
