"""The type of the columns that models compute with."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
