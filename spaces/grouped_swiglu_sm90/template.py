"""The search space of the grouped product with SwiGLU: that of ``grouped_gemm_sm90``, where its tiles can be halved."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import CONSTRAINTS, GroupedEpilogueTemplate, shape_of
from tilescout.spaces.grouped_swiglu_sm90.layout import INTERLEAVED
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import Built


def _halves_are_stored(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray((columns["swap_ab"] == 1) | (columns["tile_n"] % 32 == 0))


class GroupedSwigluSm90Template(GroupedEpilogueTemplate):
    """The template of ``grouped_swiglu_sm90``; its problems are `GatedProblem`."""

    name = "grouped_swiglu_sm90"
    summary = "gate and up products of experts with SwiGLU on Hopper, by our kernel"
    package = "tilescout.spaces.grouped_swiglu_sm90"
    sources = ("build.py", "epilogue.py", "kernel.py", "layout.py")
    workload = "tilescout.spaces.gated:Gated"
    constraints = (
        *CONSTRAINTS,
        Constraint(
            "stored",
            "SwiGLU leaves half of a tile's columns, and 32 bytes of a row are stored at a time or more: tile_n is a "
            "multiple of 32 unless operands are swapped",
            ("swap_ab", "tile_n"),
            _halves_are_stored,
        ),
    )

    def check(self, problem: GroupedProblem) -> None:
        super().check(problem)
        if problem.n % (2 * INTERLEAVED):
            raise ProblemError(
                f"{self.name}: n = {problem.n} is not a multiple of {2 * INTERLEAVED}; gate and up have as many rows "
                f"each, and TMA takes {INTERLEAVED} of them in turn"
            )

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_swiglu_sm90.build import build_object

        mixed, trim = configuration["order"] == "mixed", configuration["trim"] == 1
        return build_object(shape_of(configuration), mixed, trim, GatedProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_swiglu_sm90.build  # noqa: F401


TEMPLATE = GroupedSwigluSm90Template()
