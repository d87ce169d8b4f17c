"""The search space of the grouped product that loads halves of tiles: that of ``grouped_gemm_sm90``."""

from collections.abc import Mapping
from pathlib import Path

from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import GroupedEpilogueTemplate, shape_of
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import Built


class GroupedHalvedSm90Template(GroupedEpilogueTemplate):
    """The template of ``grouped_halved_sm90``."""

    name = "grouped_halved_sm90"
    summary = "products of experts on Hopper, by our kernel that loads half of a trimmed tile"
    package = "tilescout.spaces.grouped_halved_sm90"
    sources = ("build.py", "kernel.py")
    careful = False  # no launch with wrong offsets was watched, though groups are found as in `grouped_gemm_sm90`

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_halved_sm90.build import build_object

        if configuration["trim"] != 1:
            return super().build(configuration, signature, arch, path)
        mixed = configuration["order"] == "mixed"
        return build_object(shape_of(configuration), mixed, GroupedProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_halved_sm90.build  # noqa: F401


TEMPLATE = GroupedHalvedSm90Template()
