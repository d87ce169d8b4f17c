"""The arithmetic of a softmax configuration; importing it costs nothing.

It works on numbers and, unchanged, on columns of them.
"""

from dataclasses import dataclass
from typing import Any

WARP = 32
ACCESS_BYTES = 16  # that a thread reads or writes with one instruction at most
BARRIER_BYTES = 8


@dataclass(frozen=True)
class SoftmaxShape:
    """The compile-time parameters of the kernel; see the knobs of the template.

    Attributes
    ----------
    threads, rows, cluster
        Threads a block, rows a block, blocks that share a row.
    vector, loads
        Elements of an access, and accesses of a thread that are under way at once.
    method
        ``two_pass``, ``online`` or ``streamed``.
    streaming
        Whether loads and stores ask the caches not to keep the data.
    """

    threads: int
    rows: int
    cluster: int
    vector: int
    loads: int
    method: str
    streaming: bool

    @property
    def row_threads(self) -> int:
        """Threads of a block that share a row."""
        return self.threads // self.rows

    @property
    def held(self) -> int:
        """Elements of a row that are in registers at a time."""
        return int(capacity(self.row_threads, self.vector, self.loads, self.cluster))

    @property
    def partials(self) -> int:
        """Partial results of a row that its warps exchange; one where a warp has the whole row."""
        return max(1, self.row_threads // WARP) * self.cluster

    @property
    def width(self) -> int:
        """Numbers of a partial result: a maximum or a sum, or both."""
        return 1 if self.method == "two_pass" else 2

    @property
    def exchanges(self) -> int:
        """How often the warps of a row exchange partial results."""
        return 2 if self.method == "two_pass" else 1

    @property
    def exchange_bytes(self) -> int:
        """Shared memory of the partial results of one exchange."""
        return 4 * self.rows * self.partials * self.width

    @property
    def shared_memory(self) -> int:
        """Bytes of shared memory a block."""
        if self.partials == 1:
            return 0
        return self.exchanges * (_up(self.exchange_bytes) + (BARRIER_BYTES if self.cluster > 1 else 0))


def _up(size: int) -> int:
    return -(-size // BARRIER_BYTES) * BARRIER_BYTES


def capacity(row_threads: Any, vector: Any, loads: Any, cluster: Any) -> Any:
    """Elements of a row that the registers of its threads hold at once."""
    return row_threads * vector * loads * cluster
