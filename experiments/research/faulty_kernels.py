"""A space of kernels that square a matrix; every tenth of them is wrong, hangs, crashes or writes outside its output.

Each is compiled for itself. They are few different kernels, so that the same one is measured again and again while
faulty ones come and go: its ratio must not drift.
"""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.search.measure.measurement import Status
from tilescout.spaces.building import compile_object, import_compiler, row_major
from tilescout.spaces.devices import Device
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.rowwise import Rowwise, RowwiseProblem
from tilescout.spaces.templates import Built, KernelTemplate

if TYPE_CHECKING:
    import torch

EVERY = 10
"""Of so many kernels in a row, the last is faulty."""

FAULTS = ("wrong", "outside", "crash", "wrong", "outside", "wrong", "outside", "crash", "wrong", "hang")
"""The faults, in turn. One that hangs costs its time limit and a new process, one that crashes the process."""

KNOWN_BY: Mapping[str, frozenset[Status]] = {
    "": frozenset({Status.OK, Status.PRUNED}),
    "wrong": frozenset({Status.WRONG}),
    "outside": frozenset({Status.WRONG}),
    "crash": frozenset({Status.LAUNCH_ERROR, Status.CRASH}),
    "hang": frozenset({Status.TIMEOUT}),
}
"""How the trial of a kernel with a fault must end; of one without a fault, under the empty string."""

VARIANTS = tuple(product((4, 1, 2, 8, 16), (8, 1, 2, 4)))
"""Rows a block, and elements of an access; the first is the default's."""


class Square(Rowwise):
    """The square of every element."""

    def reference(self, problem: RowwiseProblem, inputs: "tuple[torch.Tensor, ...]") -> "torch.Tensor":
        return inputs[0].float().square()


def fault_of(number: int) -> str:
    """The fault of a kernel; empty if it has none."""
    return FAULTS[number // EVERY % len(FAULTS)] if number % EVERY == EVERY - 1 else ""


class FaultyKernels(KernelTemplate[RowwiseProblem]):
    """The space.

    Parameters
    ----------
    count
        How many kernels it has.
    """

    name, workload, archs = "faulty_kernels", f"{__name__}:Square", ("sm_90a",)
    package, sources = __name__.rpartition(".")[0], ("faulty_kernels.py",)

    def __init__(self, count: int) -> None:
        self.knobs = (Knob("number", tuple(range(count)), "which kernel: its variant, and its fault"),)

    def default(self, problem: RowwiseProblem, device: Device) -> Configuration:
        return Configuration.of({"number": 0})

    def warm_up(self) -> None:
        import_compiler()
        _launch()

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        number = int(configuration["number"])
        warps, vector = VARIANTS[number % len(VARIANTS)]
        element = RowwiseProblem.small(signature).element
        matrices = row_major(element, vector), row_major(element, vector)
        compile_object(_launch(), (*matrices, warps, vector, fault_of(number)), path, self.name)
        return Built(self.name, shared_memory=0)


_HANGS = "{ FOREVER: nanosleep.u32 1000; bra FOREVER; }"
_CRASHES = "trap;"


def _launch() -> Any:
    """The entry point, which CuteDSL compiles; importing that takes seconds."""
    import cuda.bindings.driver as cuda
    from cutlass import Constexpr, cute
    from cutlass._mlir.dialects import llvm
    from cutlass.cutlass_dsl import dsl_user_op

    @dsl_user_op  # type: ignore[untyped-decorator]
    def instruct(text: str, *, loc: Any = None, ip: Any = None) -> None:
        dialect = llvm.AsmDialect.AD_ATT
        llvm.inline_asm(None, [], text, "", has_side_effects=True, is_align_stack=False, asm_dialect=dialect)

    @cute.kernel  # type: ignore[untyped-decorator]
    def square(x: cute.Tensor, y: cute.Tensor, warps: Constexpr, vector: Constexpr, fault: Constexpr) -> None:
        row = cute.arch.block_idx()[0] * warps + cute.arch.thread_idx()[0] // 32
        if row < x.shape[0]:
            source, target = (cute.zipped_divide(tensor[row, None], (vector,)) for tensor in (x, y))
            for part in range(cute.arch.lane_idx(), cute.size(source, mode=[1]), 32):
                values = source[None, part].load()
                target[None, part].store(values * values)
            if row == 0 and cute.arch.lane_idx() == 0:
                if fault == "wrong":
                    y[0, 0] = x[0, 0] * x[0, 0] + x.element_type(1000)
                if fault == "outside":
                    y[x.shape[0], 0] = x[0, 0]
                if fault == "crash":
                    instruct(_CRASHES)
                if fault == "hang":
                    instruct(_HANGS)

    @cute.jit  # type: ignore[untyped-decorator]
    def launch(
        x: cute.Tensor,
        y: cute.Tensor,
        warps: Constexpr,
        vector: Constexpr,
        fault: Constexpr,
        stream: cuda.CUstream,
    ) -> None:
        grid = (cute.ceil_div(x.shape[0], warps), 1, 1)
        square(x, y, warps, vector, fault).launch(grid=grid, block=(32 * warps, 1, 1), stream=stream)

    return launch
