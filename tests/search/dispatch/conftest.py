"""An invented GPU for the tests of dispatchers."""

import pytest

from tests.search.dispatch.invented_gpu import InventedGpu


@pytest.fixture(scope="session")
def invented_gpu() -> InventedGpu:
    """An invented GPU with some kernels of the portfolio, for up to `MOST` rows."""
    return InventedGpu(6144, 4096, 32, noise=0.01, seed=5)
