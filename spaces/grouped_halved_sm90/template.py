"""The search space of the grouped product that loads halves of tiles: that of ``grouped_streamk_sm90``, and a knob."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import shape_of
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE as SHARING
from tilescout.spaces.grouped_streamk_sm90.template import GroupedStreamKSm90Template
from tilescout.spaces.grouped_streamk_sm90.template import widened as shared_too
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built


def _halves_are_trimmed(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray(columns["halves"] <= columns["trim"])


class GroupedHalvedSm90Template(GroupedStreamKSm90Template):
    """The template of ``grouped_halved_sm90``."""

    name = "grouped_halved_sm90"
    summary = "products of experts on Hopper, by our kernel that may load half of a trimmed tile"
    package = "tilescout.spaces.grouped_halved_sm90"
    sources = ("build.py", "kernel.py")
    knobs = (
        *SHARING.knobs,
        Knob("halves", (0, 1), "whether of a tile that is multiplied as half a tile only that half is loaded"),
    )
    constraints = (
        *SHARING.constraints,
        Constraint("trimmed", "halves are loaded of tiles that are trimmed", ("trim", "halves"), _halves_are_trimmed),
    )
    careful = False  # no launch with wrong offsets was watched, though groups are found as in `grouped_gemm_sm90`

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        return widened(super().default(problem, device))

    def known(self, problem: GroupedProblem, device: Device) -> Sequence[Configuration]:
        return [widened(each) for each in super().known(problem, device)]

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_halved_sm90.build import build_object

        if not configuration["halves"]:
            return super().build(configuration, signature, arch, path)
        mixed = configuration["order"] == "mixed"
        return build_object(shape_of(configuration), mixed, GroupedProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_halved_sm90.build  # noqa: F401

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_streamk_sm90``."""
        return hashlib.sha256((super().source_hash + SHARING.source_hash).encode()).hexdigest()


def widened(single: Mapping[str, Value]) -> Configuration:
    """The same kernel of ``grouped_gemm_sm90`` or ``grouped_streamk_sm90`` as a configuration of this space."""
    return Configuration.of({"halves": 0, **shared_too(single)})


TEMPLATE = GroupedHalvedSm90Template()
