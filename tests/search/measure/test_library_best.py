"""The library's best candidate, as tables and studies keep it."""

from typing import Any

import pytest

from tilescout.search.measure.library_best import LibraryBest

RECORD = {
    "library": "cuBLASLt",
    "version": "13",
    "space": "cublaslt",
    "configuration": {"algorithm": 66, "tile": "t"},
    "listed": 8,
    "ratio": {"value": 0.97, "low": 0.96, "high": 0.98},
    "over": None,
    "gpu_seconds": 0.1,
}


def test_what_was_written_is_read() -> None:
    best = LibraryBest.from_dict(RECORD)
    assert LibraryBest.from_dict(best.to_dict()) == best


@pytest.mark.parametrize("value", [float("nan"), 1.5, None, [], {}, True])
def test_a_configuration_has_integers_and_texts(value: Any) -> None:
    with pytest.raises(TypeError, match="something else than integers and strings"):
        LibraryBest.from_dict({**RECORD, "configuration": {"algorithm": value}})
