"""The search space of the grouped product with scaled rows: that of ``grouped_gemm_sm90``."""

from collections.abc import Mapping
from pathlib import Path

from tilescout.spaces.grouped_gemm_sm90.template import GroupedEpilogueTemplate, shape_of
from tilescout.spaces.knobs import Value
from tilescout.spaces.scaled import ScaledProblem
from tilescout.spaces.templates import Built


class GroupedScaledSm90Template(GroupedEpilogueTemplate):
    """The template of ``grouped_scaled_sm90``; its problems are `ScaledProblem`."""

    name = "grouped_scaled_sm90"
    summary = "down products of experts scaled by the router's weights on Hopper, by our kernel"
    package = "tilescout.spaces.grouped_scaled_sm90"
    sources = ("build.py", "epilogue.py", "kernel.py")
    workload = "tilescout.spaces.scaled:Scaled"

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_scaled_sm90.build import build_object

        mixed, trim = configuration["order"] == "mixed", configuration["trim"] == 1
        return build_object(shape_of(configuration), mixed, trim, ScaledProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_scaled_sm90.build  # noqa: F401


TEMPLATE = GroupedScaledSm90Template()
