"""The search space of the grouped product with scaled rows: that of ``grouped_gemm_sm90``."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE as GROUPED
from tilescout.spaces.grouped_gemm_sm90.template import GroupedGemmSm90Template, shape_of
from tilescout.spaces.knobs import Value
from tilescout.spaces.scaled import ScaledProblem
from tilescout.spaces.templates import Built


class GroupedScaledSm90Template(GroupedGemmSm90Template):
    """The template of ``grouped_scaled_sm90``; its problems are `ScaledProblem`."""

    name = "grouped_scaled_sm90"
    summary = "down products of experts scaled by the router's weights on Hopper, by our kernel"
    package = "tilescout.spaces.grouped_scaled_sm90"
    sources = ("build.py", "epilogue.py", "kernel.py")
    workload = "tilescout.spaces.scaled:Scaled"
    pairs = ""

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_scaled_sm90.build import build_object

        mixed, trim = configuration["order"] == "mixed", configuration["trim"] == 1
        return build_object(shape_of(configuration), mixed, trim, ScaledProblem.small(signature), path)

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_scaled_sm90.build  # noqa: F401

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_gemm_sm90``."""
        return hashlib.sha256((super().source_hash + GROUPED.source_hash).encode()).hexdigest()


TEMPLATE = GroupedScaledSm90Template()
