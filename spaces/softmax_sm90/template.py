"""The search space of the softmax: its knobs, its rules with their reasons, and its default."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.spaces.building import compile_object, element_type, row_major
from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.softmax_sm90.layout import ACCESS_BYTES, WARP, SoftmaxShape, capacity
from tilescout.spaces.templates import Built, KernelTemplate

MOST_LOADS = 32

KNOBS = (
    Knob("threads", (32, 64, 128, 256, 512, 1024), "threads a block"),
    Knob("rows", (1, 2, 4, 8, 16, 32), "rows a block"),
    Knob("cluster", (1, 2, 4, 8), "blocks that share a row"),
    Knob("vector", (1, 2, 4, 8), "elements of one access to memory"),
    Knob("loads", (1, 2, 4, 8, 16, MOST_LOADS), "accesses of a thread that are in flight at once"),
    Knob(
        "method",
        ("two_pass", "online", "streamed"),
        "the maximum and then the sum; both in one pass; both in one pass, the row in parts",
    ),
    Knob("cache", ("normal", "streaming"), "whether the caches are to keep what is read and written"),
)

MOST_ROWS = 2**28 - 1  # clusters of 8 in a grid
MOST_PARTS, LEAST_PART = 64, 8192  # parts in which a row is walked, and bytes of one
MOST_COLUMNS = MOST_PARTS * 8 * 1024 * 32  # in parts of what a cluster holds, element by element

# Elements that a thread can hold, by the threads of its block. For a moment a thread holds them twice, as loaded and in
# fp32, and the threads of a block share 64 Ki registers. On sm_90a, 64 elements were seen to take 92 to 127 registers;
# with 1024 threads, which have 64 registers each, they spill 104 bytes.
MOST_HELD = {32: 128, 64: 128, 128: 128, 256: 128, 512: 64, 1024: 32}


def _loads(problem: RowwiseProblem, elements: int) -> int:
    """Accesses of a thread, if one access of every thread of a row moves so many elements together."""
    return _power_of_two(-(-problem.columns // elements))


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (number - 1).bit_length()


def _row_threads(columns: Columns) -> Any:
    return columns["threads"] // columns["rows"]


def _held(columns: Columns) -> Any:
    return capacity(_row_threads(columns), columns["vector"], columns["loads"], columns["cluster"])


def _rows_are_there(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    return np.asarray((columns["rows"] <= columns["threads"]) & (columns["rows"] < 2 * problem.rows))


def _cluster_has_one_row(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    return np.asarray((columns["cluster"] == 1) | (columns["rows"] == 1))


def _accesses_are_aligned(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    fits = columns["vector"] * problem.element.bytes <= ACCESS_BYTES
    return np.asarray(fits & (problem.columns % columns["vector"] == 0))


def _registers_suffice(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    most = np.array(list(MOST_HELD.values()))[np.searchsorted(list(MOST_HELD), columns["threads"])]
    return np.asarray(columns["vector"] * columns["loads"] <= most)


def _method_fits(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    held = _held(columns)
    streamed = columns["method"] == "streamed"
    whole = held >= problem.columns
    parts = (held * problem.element.bytes >= LEAST_PART) & (held * MOST_PARTS >= problem.columns)
    return np.asarray((streamed & ~whole & parts) | (~streamed & whole))


def _registers_are_filled(columns: Columns, problem: RowwiseProblem, device: Device) -> Mask:
    smallest = (columns["loads"] == 1) & (columns["cluster"] == 1) & (_row_threads(columns) <= WARP)
    return np.asarray((_held(columns) < 2 * problem.columns) | smallest)


CONSTRAINTS = (
    Constraint(
        "rows",
        "every row of a block has a thread, and at least half of them are rows of the matrix",
        ("threads", "rows"),
        _rows_are_there,
    ),
    Constraint(
        "cluster",
        "blocks of a cluster share one row: cluster > 1 needs rows == 1",
        ("rows", "cluster"),
        _cluster_has_one_row,
    ),
    Constraint(
        "aligned",
        f"an access is of {ACCESS_BYTES} bytes at most, and columns are a multiple of its elements, so that every row "
        "is aligned to it",
        ("vector",),
        _accesses_are_aligned,
    ),
    Constraint(
        "registers",
        "a thread holds vector * loads elements, at most "
        + ", ".join(f"{most} with {threads} threads" for threads, most in MOST_HELD.items())
        + "; beyond, it spills",
        ("threads", "vector", "loads"),
        _registers_suffice,
    ),
    Constraint(
        "filled",
        "half of what the threads of a row can hold or more would stay empty: less than 2 * columns, or the smallest",
        ("threads", "rows", "cluster", "vector", "loads"),
        _registers_are_filled,
    ),
    Constraint(
        "method",
        "the threads of a row hold all of it (threads / rows * cluster * vector * loads >= columns), or the method is "
        f"streamed, which walks a longer one in at most {MOST_PARTS} parts of at least {LEAST_PART} bytes",
        ("threads", "rows", "cluster", "vector", "loads", "method"),
        _method_fits,
    ),
)

# With these, enough accesses are in flight, and the registers are few enough for several blocks to share a
# multiprocessor. On an H200 and rows of 16,384 to 65,536, blocks of 512 threads were 4 to 8 % slower than clusters of
# blocks of 256.
_LOADS, _BLOCK, _LARGEST_BLOCK = 4, 256, 1024


class SoftmaxSm90Template(KernelTemplate[RowwiseProblem]):
    """The template of ``softmax_sm90``.

    A compiled kernel works for any number of rows. The columns must be a multiple of the elements of an access, and no
    more than the threads of a row can hold, unless the method is ``streamed``.
    """

    name = "softmax_sm90"
    summary = "softmax of rows on Hopper, by our kernel"
    package = "tilescout.spaces.softmax_sm90"
    sources = ("exchange.py", "kernel.py", "layout.py")
    workload = "tilescout.spaces.rowwise:Softmax"
    archs = ("sm_90a",)
    knobs = KNOBS
    constraints = CONSTRAINTS

    def check(self, problem: RowwiseProblem) -> None:
        if problem.rows > MOST_ROWS or problem.columns > MOST_COLUMNS:
            raise ProblemError(
                f"{self.name}: problem {problem}: allowed are at most {MOST_ROWS} rows and {MOST_COLUMNS} columns"
            )

    def default(self, problem: RowwiseProblem, device: Device) -> Configuration:
        # The widest accesses, four for each thread. A part of a block, a block, or a cluster of blocks shares a row, as
        # it needs. Where a row is too long for that, a thread has more accesses, and then there are more threads.
        vector = next(v for v in (8, 4, 2, 1) if v * problem.element.bytes <= ACCESS_BYTES and problem.columns % v == 0)
        needed = _power_of_two(-(-problem.columns // (vector * _LOADS)))
        row_threads = min(max(needed, WARP), _BLOCK)
        rows = min(_BLOCK // row_threads, _power_of_two(problem.rows))
        cluster = min(max(1, needed // row_threads), 8)
        loads = _loads(problem, vector * row_threads * cluster)
        method = "online"
        if loads > MOST_LOADS or vector * loads > MOST_HELD[row_threads]:
            row_threads = _LARGEST_BLOCK
            loads = min(_loads(problem, vector * row_threads * cluster), MOST_HELD[row_threads] // vector)
            if capacity(row_threads, vector, loads, cluster) < problem.columns:
                method = "streamed"
        values: tuple[Value, ...] = (row_threads * rows, rows, cluster, vector, loads, method, "normal")
        return Configuration(tuple(zip((knob.name for knob in KNOBS), values, strict=True)))

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return int(configuration["cluster"])

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.softmax_sm90.kernel  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.softmax_sm90.kernel import SoftmaxSm90

        shape, element = shape_of(configuration), RowwiseProblem.small(signature).element
        matrices = row_major(element, shape.vector), row_major(element, shape.vector)
        compile_object(SoftmaxSm90(shape, element_type(element)), matrices, path, self.name)
        return Built(self.name, shape.shared_memory)


def shape_of(configuration: Mapping[str, Value]) -> SoftmaxShape:
    """The kernel's compile-time parameters of a configuration."""
    sizes = {name: int(configuration[name]) for name in ("threads", "rows", "cluster", "vector", "loads")}
    return SoftmaxShape(**sizes, method=str(configuration["method"]), streaming=configuration["cache"] == "streaming")


TEMPLATE = SoftmaxSm90Template()
