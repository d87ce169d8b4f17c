"""The search space of the grouped product by strands: that of ``grouped_gemm_sm90``, and a knob."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm_streamk_sm90.layout import most_clusters
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import CONSTRAINTS, KNOBS, GroupedGemmSm90Template, shape_of
from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE as GROUPED
from tilescout.spaces.grouped_strands_sm90.order import Walk
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built

_SUM_BYTES = 4


def _shared_are_whole(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray((columns["trim"] == 0) | (columns["shares"] == 0))


class GroupedStrandsSm90Template(GroupedGemmSm90Template):
    """The template of ``grouped_strands_sm90``."""

    name = "grouped_strands_sm90"
    summary = "products of experts on Hopper, by our kernel at several experts at once"
    package = "tilescout.spaces.grouped_strands_sm90"
    sources = ("build.py", "kernel.py", "order.py")
    knobs = (
        *KNOBS,
        Knob("strands", (1, 3, 6), "parts of the list of tiles, from which blocks take tiles in turn"),
        Knob("shares", (0, 1), "whether all clusters share the tiles of the last wave, along k"),
    )
    constraints = (
        *CONSTRAINTS,
        Constraint("whole", "tiles of a wave that is shared are not trimmed", ("trim", "shares"), _shared_are_whole),
    )
    pairs = ""

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        return Configuration.of({**super().default(problem, device), "strands": 1, "shares": 0})

    def known(self, problem: GroupedProblem, device: Device) -> Sequence[Configuration]:
        known = super().known(problem, device)
        return [Configuration.of({**each, "strands": strands, "shares": 0}) for strands in (3, 1) for each in known]

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_strands_sm90.build import build_object

        walk = Walk(
            mixed=configuration["order"] == "mixed",
            trim=configuration["trim"] == 1,
            strands=int(configuration["strands"]),
            shares=configuration["shares"] == 1,
        )
        shape = shape_of({knob.name: configuration[knob.name] for knob in KNOBS})
        return build_object(shape, walk, GroupedProblem.small(signature), path)

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GroupedProblem) -> int:
        # As many slots as there may be whatever the tokens are: a kernel that is exported serves any number.
        if not configuration["shares"]:
            return 0
        blocks = self.blocks_per_cluster(configuration)
        tile = int(configuration["tile_m"]) * int(configuration["tile_n"]) * blocks
        return _SUM_BYTES * tile * (2 * int(most_clusters(blocks)) - 1)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_strands_sm90.build  # noqa: F401

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_gemm_sm90``."""
        return hashlib.sha256((super().source_hash + GROUPED.source_hash).encode()).hexdigest()


TEMPLATE = GroupedStrandsSm90Template()
