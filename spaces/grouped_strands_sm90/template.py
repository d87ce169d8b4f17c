"""The search space of the grouped product by strands: that of ``grouped_gemm_sm90``, and a knob."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilescout.spaces.devices import Device
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import KNOBS, GroupedGemmSm90Template, shape_of
from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE as GROUPED
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built


class GroupedStrandsSm90Template(GroupedGemmSm90Template):
    """The template of ``grouped_strands_sm90``."""

    name = "grouped_strands_sm90"
    summary = "products of experts on Hopper, by our kernel at several experts at once"
    package = "tilescout.spaces.grouped_strands_sm90"
    sources = ("build.py", "kernel.py", "order.py")
    knobs = (
        *KNOBS,
        Knob("strands", (1, 2, 3, 5), "parts of the list of tiles, from which blocks take tiles in turn"),
    )
    pairs = ""

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        return Configuration.of({**super().default(problem, device), "strands": 1})

    def known(self, problem: GroupedProblem, device: Device) -> Sequence[Configuration]:
        known = super().known(problem, device)
        return [Configuration.of({**each, "strands": strands}) for strands in (3, 1) for each in known]

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_strands_sm90.build import build_object

        mixed, trim = configuration["order"] == "mixed", configuration["trim"] == 1
        single = {knob.name: configuration[knob.name] for knob in KNOBS}
        strands = int(configuration["strands"])
        return build_object(shape_of(single), mixed, trim, strands, GroupedProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_strands_sm90.build  # noqa: F401

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_gemm_sm90``."""
        return hashlib.sha256((super().source_hash + GROUPED.source_hash).encode()).hexdigest()


TEMPLATE = GroupedStrandsSm90Template()
