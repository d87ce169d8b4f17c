"""Two configurations of ``grouped_streamk_sm90`` and a rule as one configuration, and how that is built."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import shape_of
from tilescout.spaces.grouped_pair_sm90.rule import COUNTED, PairRule, Side, sums_at
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE as SINGLE
from tilescout.spaces.grouped_streamk_sm90 import widened
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import Built, KernelTemplate

SIDES = ("first", "second")
_WORD = 4  # bytes


class GroupedPairSm90Template(KernelTemplate[GroupedProblem]):
    """Build pairs for bundles. What pairs there are nobody searches: they follow from the times of single kernels."""

    name = "grouped_pair_sm90"
    summary = "two kernels of grouped_streamk_sm90, of which the device takes one by how tokens are routed"
    package = "tilescout.spaces.grouped_pair_sm90"
    sources = ("build.py", "kernel.py", "rule.py")
    workload = SINGLE.workload
    archs = SINGLE.archs
    knobs = tuple(Knob(f"{side}_{knob.name}", knob.values, knob.doc) for side in SIDES for knob in SINGLE.knobs)
    careful = True

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        """Return the default of single kernels twice: with it, it does not matter which runs."""
        single = SINGLE.default(problem, device)
        return pair_of(single, single, PairRule((0,) * len(COUNTED)))

    def space(self, problem: GroupedProblem, device: Device) -> SearchSpace[GroupedProblem]:
        """Refuse: a search has single kernels.

        Raises
        ------
        SpaceError
            Always.
        """
        raise SpaceError(f"{self.name} is no space to search: search {SINGLE.name}, and export a table of it")

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GroupedProblem) -> int:
        sums = max(SINGLE.scratch_bytes(single_of(configuration, side), problem) for side in SIDES)
        return _WORD * int(sums_at(problem.experts)) + sums

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_pair_sm90.build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_pair_sm90.build import build_object

        sides = [single_of(configuration, side) for side in SIDES]
        rule = PairRule(tuple(int(configuration[name]) for name in COUNTED))
        return build_object(sides, rule, GroupedProblem.small(signature), path)

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_streamk_sm90``."""
        return hashlib.sha256((super().source_hash + SINGLE.source_hash).encode()).hexdigest()


def pair_of(first: Configuration, second: Configuration, rule: PairRule) -> Configuration:
    """The configuration of two kernels, of ``grouped_streamk_sm90`` or ``grouped_gemm_sm90``, and a rule."""
    both = zip(SIDES, (first, second), strict=True)
    sides = {f"{side}_{name}": value for side, one in both for name, value in widened(one).items()}
    return Configuration.of({**sides, **dict(zip(COUNTED, rule.weights, strict=True))})


def single_of(configuration: Mapping[str, Value], side: str) -> Configuration:
    """The configuration of one kernel of a pair."""
    return Configuration.of({knob.name: configuration[f"{side}_{knob.name}"] for knob in SINGLE.knobs})


def side_of(configuration: Mapping[str, Value]) -> Side:
    """How a single kernel divides the work."""
    shape = shape_of(configuration)
    along = (shape.tile_m * shape.cluster_m, shape.tile_n * shape.cluster_n)
    tokens, columns = reversed(along) if shape.swap_ab else along
    return Side(tokens, columns, shape.cluster_m * shape.cluster_n)


TEMPLATE = GroupedPairSm90Template()
