"""The search space of the grouped product that may share its last wave: that of ``grouped_gemm_sm90``, and a knob."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilescout.spaces import gemm_streamk_sm90
from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm_streamk_sm90.layout import most_clusters
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import CONSTRAINTS, KNOBS, GroupedGemmSm90Template, shape_of
from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE as GROUPED
from tilescout.spaces.grouped_streamk_sm90.sharing import LOST_K, MOST_PARTS
from tilescout.spaces.grouped_tiling import GroupedTiling
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built
from tilescout.spaces.tiling import ceil_div

_SUM_BYTES = 4
_SHARED = ("layout.py", "partition.py", "sums.py")  # of gemm_streamk_sm90


def _shared_are_whole(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray((columns["trim"] == 0) | (columns["shares"] == 0))


class GroupedStreamKSm90Template(GroupedGemmSm90Template):
    """The template of ``grouped_streamk_sm90``."""

    name = "grouped_streamk_sm90"
    summary = "products of experts on Hopper, by our kernel that may share the last wave"
    package = "tilescout.spaces.grouped_streamk_sm90"
    sources = ("build.py", "kernel.py", "sharing.py")
    knobs = (
        *KNOBS,
        Knob("shares", (0, 1), "whether the tiles of a thin last wave are split along k, for several clusters each"),
    )
    constraints = (
        *CONSTRAINTS,
        Constraint("whole", "tiles of a wave that is shared are not trimmed", ("trim", "shares"), _shared_are_whole),
    )

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        return widened(super().default(problem, device))

    def known(self, problem: GroupedProblem, device: Device) -> Sequence[Configuration]:
        return [widened(each) for each in super().known(problem, device)]

    def grouped_tiling(self, columns: Columns, problem: GroupedProblem) -> GroupedTiling:
        tiling = super().grouped_tiling(columns, problem)
        k = ceil_div(problem.k, tiling.depth) * tiling.depth
        return replace(tiling, saved=np.where(columns["shares"] == 1, LOST_K / k, 1.0), most_parts=MOST_PARTS)

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GroupedProblem) -> int:
        if not configuration["shares"]:
            return 0
        # As many slots as there may be whatever the tokens are: a kernel that is exported serves any number.
        blocks = self.blocks_per_cluster(configuration)
        tile = int(configuration["tile_m"]) * int(configuration["tile_n"]) * blocks
        return _SUM_BYTES * tile * (2 * int(most_clusters(blocks)) - 1)

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_streamk_sm90.build import build_object

        if not configuration["shares"]:
            return super().build(configuration, signature, arch, path)
        mixed = configuration["order"] == "mixed"
        return build_object(shape_of(configuration), mixed, GroupedProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_streamk_sm90.build  # noqa: F401

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, those of ``grouped_gemm_sm90``, and what is of ``gemm_streamk_sm90``."""
        whole = hashlib.sha256((super().source_hash + GROUPED.source_hash).encode())
        folder = Path(gemm_streamk_sm90.__file__).parent
        for name in _SHARED:
            whole.update(folder.joinpath(name).read_bytes())
        return whole.hexdigest()


def widened(single: Mapping[str, Value]) -> Configuration:
    """The same kernel of ``grouped_gemm_sm90`` as a configuration of this space."""
    return Configuration.of({"shares": 0, **single})


TEMPLATE = GroupedStreamKSm90Template()
