from typing import Any

from numpy.typing import NDArray

# A comment after each declaration gives the array's shape and dtype.
Array = NDArray[Any]
