"""Order and trim the NVGEMM candidates of TorchInductor's ``max_autotune`` by a cost model, or pin one.

On Hopper CUTLASS lists its kernels by the sizes of their tiles, whatever the problem, and TorchInductor times the first
of them: in torch 2.14 and 2.15 ten of 28, none with more than 64 rows in a tile. Where nvMatmulHeuristics is installed,
it times what that names, and the ranker sees no others. A preprocessing function of the algorithm selector, a hook that
it documents (``torch._inductor.select_algorithm.add_preprocessing_fn``), sees the candidates of every product before
they are compiled and timed; here it sorts them by predicted time and keeps the first few. ATen's, Triton's and all
other candidates stay as they are.

What such a function does is not part of the key of TorchInductor's cache. The ranker therefore also installs a choices
handler whose ``uuid`` names it, which is (torch._inductor.choices, read in torch 2.13 and 2.15).
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.export import torch_hooks
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import DTYPES

if TYPE_CHECKING:
    from torch._inductor.ir import ChoiceCaller

Tiling = tuple[int, ...]
"""(tile_m, tile_n, tile_k, cluster_m, cluster_n) of a candidate."""

NAMES = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n")

KEPT = 4
"""Candidates that TorchInductor is left to time, unless others are asked for."""

_HOPPERS = "HopperWgmma"  # the instruction, as CUTLASS names it

Predict = Callable[[GemmProblem, Sequence[Mapping[str, int]]], NDArray[np.float64]]
"""(problem, knob values of candidates) to their predicted times, in any unit that keeps the order.

`tilescout.search.export.nvgemm_model.learned_ranker` makes a ranker of the learned model."""


@dataclass(frozen=True)
class Ranker:
    """Chooses the NVGEMM candidates of a product that TorchInductor times.

    Attributes
    ----------
    predict
        The cost model.
    version
        Names the cost model and its state: compiled code that another version ranked is not reused.
    keep
        How many candidates are timed; with 1 the model alone decides among them.
    pinned
        The candidate of each problem that is decided already; no other NVGEMM candidate of it is timed.
    """

    predict: Predict
    version: str
    keep: int = KEPT
    pinned: Mapping[GemmProblem, Tiling] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """A text that differs where the choice may differ."""
        pins = sorted((str(problem), list(tiling)) for problem, tiling in self.pinned.items())
        return hashlib.sha256(json.dumps([self.version, self.keep, pins]).encode()).hexdigest()

    def __call__(self, choices: "list[ChoiceCaller]") -> "list[ChoiceCaller]":
        """The candidates that are timed: all that are not NVGEMM's, then the best of those."""
        found = {at: tiling_of(choice) for at, choice in enumerate(choices) if is_candidate(choice)}
        ranked = {at: tiling for at, tiling in found.items() if tiling is not None}
        problem = problem_of(choices[next(iter(ranked))]) if ranked else None
        if problem is None:
            return choices
        others = [choice for at, choice in enumerate(choices) if at not in found]
        # Candidates that use the instructions of older GPUs come last.
        order = [*self._order(problem, ranked), *(at for at in found if at not in ranked)]
        keep = 1 if self._pinned(problem, ranked) else self.keep
        return others + [choices[at] for at in order[:keep]]

    def _pinned(self, problem: GemmProblem, ranked: Mapping[int, Tiling]) -> Sequence[int]:
        wanted = self.pinned.get(problem)
        return [at for at, tiling in ranked.items() if tiling == wanted]

    def _order(self, problem: GemmProblem, ranked: Mapping[int, Tiling]) -> Sequence[int]:
        if pinned := self._pinned(problem, ranked):
            return pinned
        places = list(ranked)
        predicted = self.predict(problem, [dict(zip(NAMES, ranked[at], strict=True)) for at in places])
        return [places[rank] for rank in np.argsort(predicted, kind="stable")]


def is_candidate(choice: Any) -> bool:
    """Whether a choice is one of the NVGEMM backend's."""
    return isinstance(choice, torch_hooks.NVGEMM_CALLER.find())


def tiling_of(choice: Any) -> Tiling | None:
    """The tiling of a candidate; None for one that does not use Hopper's instructions, or swaps its operands."""
    design = choice.kernel.metadata.design
    if getattr(choice, "swap_ab", False) or getattr(design.mma_instruction_type, "__name__", "") != _HOPPERS:
        return None
    tile, cluster = design.tile_shape, design.cluster_shape
    return tuple(int(size) for size in (*tile[:3], *cluster[:2]))


def problem_of(choice: "ChoiceCaller") -> GemmProblem | None:
    """The problem that a candidate is for; None where it has a dynamic size, or is none of ours."""
    a, b = choice.input_nodes[:2]
    types = {f"torch.{dtype.torch_name}": name for name, dtype in DTYPES.items()}
    layout = ("k" if a.get_stride()[-1] == 1 else "m") + ("k" if b.get_stride()[-2] == 1 else "n")
    try:
        *batches, m, k = (int(size) for size in a.get_size())
        n, batch = int(b.get_size()[-1]), batches[0] if batches else 1
        return GemmProblem(m, n, k, batch, types[str(a.get_dtype())], layout=layout)
    except (TypeError, KeyError, ProblemError):
        return None


@contextmanager
def use_ranker(ranker: Ranker) -> Iterator[None]:
    """Let what is compiled in this block, with ``max_autotune`` and the backend ``NVGEMM``, be ranked.

    Compile in the block, that is, call the compiled object there once.

    Raises
    ------
    ExportError
        If this torch is too old, or a choices handler is set already.
    """
    with torch_hooks.preprocessed_choices(ranker, ranker.uuid):
        yield
