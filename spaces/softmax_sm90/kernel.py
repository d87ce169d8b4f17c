"""The softmax that ``softmax_sm90`` searches over, in CuteDSL.

A row belongs to some threads of a block, a whole block, or the blocks of a cluster. Each thread starts all its loads of
the row at once; their data stay in registers, as they were loaded, until the result is written. So device memory is
read once and written once, and blocks that wait are hidden by other blocks of the multiprocessor. The arithmetic is
fp32, the exponential base 2 with log2(e) folded into one multiply-add.

Three methods. ``two_pass`` finds the maximum of the row, then the sum: two exchanges between threads. ``online`` lets
each thread sum relative to its own maximum and corrects that at the end (M. Milakov, N. Gimelshein: Online normalizer
calculation for softmax, arXiv:1805.02867, 2018): one exchange. ``streamed`` does the same for a row that is longer than
what the registers hold: it walks the row in parts and reads it twice, the second time from its end, which the caches
still have. Numbers beyond 2.3e38 overflow.

Importing this module imports cutlass; nothing but the compile workers does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, Int64, cute, utils

from tilescout.spaces.softmax_sm90.exchange import Exchange, Partial
from tilescout.spaces.softmax_sm90.layout import SoftmaxShape

LOG2_E = math.log2(math.e)
# Where a maximum starts: finite, so that minus infinity less a maximum is never NaN, also after scaling by log2(e).
LOWEST = -2.3e38


@dataclass(frozen=True)
class Row:
    """A thread's part of a row.

    Attributes
    ----------
    source, target
        Pointers to the row in the input and the output.
    first
        The first element of the thread's first access.
    columns
        Elements of the row; none of a row beyond the matrix.
    """

    source: Any
    target: Any
    first: Any
    columns: Any


@dataclass(frozen=True)
class SoftmaxSm90:
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel of `shape`.

    Attributes
    ----------
    shape
        The compile-time parameters.
    element
        The element type of input and output.
    """

    shape: SoftmaxShape
    element: Any

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream) -> None:
        """Launch on X and Y [rows, columns], both row-major."""
        shape = self.shape
        groups = cute.ceil_div(cute.size(x, mode=[0]), shape.rows)
        self.kernel(x, y).launch(
            grid=[groups * shape.cluster, 1, 1],
            block=[shape.threads, 1, 1],
            cluster=[shape.cluster, 1, 1] if shape.cluster > 1 else None,
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor) -> None:
        """What every block runs."""
        shape = self.shape
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        rank = block % shape.cluster
        exchanges = self.exchanges(rank, thread)
        if cutlass.const_expr(shape.cluster > 1):
            if thread == 0:
                for exchange in exchanges:
                    exchange.initialise()
            cute.arch.cluster_arrive_relaxed()  # waited for before the first exchange
        # Programmatic dependent launch: what the last kernel wrote is there from here on, and the next one may start.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        row = block // shape.cluster * shape.rows + thread // shape.row_threads
        inside = row < x.shape[0]
        columns = x.shape[1] if inside else Int32(0)
        start = cute.assume(Int64(row) * x.shape[1], divby=shape.vector)
        lane = rank * shape.row_threads + thread % shape.row_threads
        mine = Row(x.iterator + start, y.iterator + start, lane * shape.vector, columns)
        if cutlass.const_expr(shape.method == "streamed"):
            self.stream_row(mine, exchanges)
        else:
            self.hold_row(mine, exchanges)

    @cute.jit
    def hold_row(self, row: Row, exchanges: Any) -> None:
        """The softmax of a row that the registers hold."""
        held = self.load(row, Int32(0))
        top = (maximum(held),)
        if cutlass.const_expr(self.shape.method == "two_pass"):
            self.wait_for_cluster()
            top = exchanges[0].reduce(top, larger)
            powers = powers_of(held, top[0])
            total = exchanges[1].reduce((sum_of(powers),), added)
            self.store(row, Int32(0), powers, cute.arch.rcp_approx(total[0]))
        else:
            powers = powers_of(held, top[0])
            mine = (top[0], sum_of(powers))
            self.wait_for_cluster()
            whole = exchanges[0].reduce(mine, joined)
            self.store(row, Int32(0), powers, power(top[0] - whole[0]) * cute.arch.rcp_approx(whole[1]))

    @cute.jit
    def stream_row(self, row: Row, exchanges: Any) -> None:
        """The softmax of a longer row, in parts."""
        held = self.shape.held
        parts = cute.ceil_div(row.columns, held)
        top, total = Float32(LOWEST * LOG2_E), Float32(0)
        for part in cutlass.range(parts, unroll=1):
            loaded = self.load(row, part * held)
            higher = cute.arch.fmax(top, maximum(loaded))
            total = total * power(top - higher) + sum_of(powers_of(loaded, higher))
            top = higher
        self.wait_for_cluster()
        whole = exchanges[0].reduce((top, total), joined)
        factor = cute.arch.rcp_approx(whole[1])
        for part in cutlass.range(parts, unroll=1):
            offset = (parts - 1 - part) * held
            self.store(row, offset, powers_of(self.load(row, offset), whole[0]), factor)

    @cute.jit
    def load(self, row: Row, offset: Int32) -> cute.Tensor:
        """What the thread has of the row from `offset` on, [vector, loads]; minus infinity beyond the row's end."""
        shape = self.shape
        loaded = cute.make_rmem_tensor(cute.make_layout((shape.vector, shape.loads)), self.element)
        loaded.fill(-math.inf)
        for number in cutlass.range_constexpr(shape.loads):
            at = row.first + offset + number * self.step
            if at < row.columns:
                cute.copy(self.load_atom, self.access(row.source, at), loaded[None, number])
        return loaded

    @cute.jit
    def store(self, row: Row, offset: Int32, powers: cute.Tensor, factor: Float32) -> None:
        """Write `powers` [vector, loads] times `factor` from `offset` on."""
        shape = self.shape
        result = cute.make_rmem_tensor(powers.layout, self.element)
        result.store((powers.load() * factor).to(self.element))
        for number in cutlass.range_constexpr(shape.loads):
            at = row.first + offset + number * self.step
            if at < row.columns:
                cute.copy(self.store_atom, result[None, number], self.access(row.target, at))

    @cute.jit
    def wait_for_cluster(self) -> None:
        """Wait until every block of the cluster can be sent to."""
        if cutlass.const_expr(self.shape.cluster > 1):
            cute.arch.cluster_wait()

    def exchanges(self, rank: Int32, thread: Int32) -> list[Exchange]:
        """The exchanges of partial results, each with its own part of shared memory."""
        shape, memory = self.shape, utils.SmemAllocator()
        found = []
        for _ in range(shape.exchanges if shape.partials > 1 else 0):
            numbers = shape.rows * shape.partials * shape.width
            partials = memory.allocate_array(Float32, numbers + numbers % 2)
            arrived = memory.allocate_array(Int64, 1) if shape.cluster > 1 else None
            found.append(Exchange(shape, partials, arrived, rank, thread))
        return found or [Exchange(shape, None, None, rank, thread)] * shape.exchanges

    @property
    def step(self) -> int:
        """Elements from one access of a thread to its next."""
        return self.shape.held // self.shape.loads

    @property
    def load_atom(self) -> cute.CopyAtom:
        """Reads one access."""
        mode = cute.nvgpu.LoadCacheMode.STREAMING if self.shape.streaming else cute.nvgpu.LoadCacheMode.ALWAYS
        return cute.make_copy_atom(
            cute.nvgpu.CopyG2ROp(),
            self.element,
            num_bits_per_copy=self.shape.vector * self.element.width,
            load_cache_mode=mode,
        )

    @property
    def store_atom(self) -> cute.CopyAtom:
        """Writes one access."""
        mode = cute.nvgpu.StoreCacheMode.STREAMING if self.shape.streaming else cute.nvgpu.StoreCacheMode.WRITE_BACK
        return cute.make_copy_atom(
            cute.nvgpu.CopyR2GOp(),
            self.element,
            num_bits_per_copy=self.shape.vector * self.element.width,
            store_cache_mode=mode,
        )

    def access(self, start: Any, at: Int32) -> cute.Tensor:
        """The elements of an access from `at` on; accesses are aligned to their own size."""
        return cute.make_tensor(start + cute.assume(at, divby=self.shape.vector), cute.make_layout(self.shape.vector))


def flat(values: cute.Tensor) -> list[Any]:
    """The elements in fp32."""
    wide = values.load().to(Float32)
    return [wide[at] for at in range(cute.size(values))]


def tree(values: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """All values combined, neighbours first: a chain would wait for every step."""
    while len(values) > 1:
        pairs = [combine(one, other) for one, other in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def maximum(values: cute.Tensor) -> Float32:
    """The largest of the values, as an exponent of 2."""
    return cute.arch.fmax(tree(flat(values), cute.arch.fmax), LOWEST) * LOG2_E


def powers_of(values: cute.Tensor, top: Float32) -> cute.Tensor:
    """The exponential of each value, over 2 to the power of `top`."""
    powers = cute.make_rmem_tensor(values.layout, Float32)
    for at, value in enumerate(flat(values)):
        powers[at] = power(value * LOG2_E - top)
    return powers


def power(exponent: Float32) -> Float32:
    """2 to the power of a number, by the special function unit."""
    return cute.math.exp2(exponent, fastmath=True)


def sum_of(powers: cute.Tensor) -> Float32:
    """The sum."""
    return tree(flat(powers), lambda one, other: one + other)


def larger(one: Partial, other: Partial) -> Partial:
    """The larger of two maxima."""
    return (cute.arch.fmax(one[0], other[0]),)


def added(one: Partial, other: Partial) -> Partial:
    """The sum of two sums."""
    return (one[0] + other[0],)


def joined(one: Partial, other: Partial) -> Partial:
    """The maximum and the sum of two parts, each sum relative to its own part's maximum."""
    top = cute.arch.fmax(one[0], other[0])
    return top, one[1] * power(one[0] - top) + other[1] * power(other[0] - top)
