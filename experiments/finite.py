"""Records as JSON can hold them."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """A record with null in the place of numbers that are infinite or unknown, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
