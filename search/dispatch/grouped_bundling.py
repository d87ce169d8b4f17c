"""From measured times of grouped products to a bundle: their kernels, and the ranges of tokens that each serves."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.cores import available_cores
from tilescout.search.dispatch.grouped_ranges import (
    GroupedStretch,
    Second,
    choose_grouped,
    grouped_stretches,
    outlook,
    served_ratio,
)
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.export.bundle import Kernel
from tilescout.search.export.from_studies import GroupedDispatched, Wanted, built_kernel, obstacle
from tilescout.search.export.grouped.dispatch import GroupedDispatch
from tilescout.search.export.ranges import Range
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ExportError, SpaceError
from tilescout.spaces.grouped_pair_sm90 import pair_of
from tilescout.spaces.plugins import load
from tilescout.spaces.templates import NONE_NAMED, KernelTemplate, Named, find_template


@dataclass(frozen=True)
class MeasuredTable:
    """The table that measured times come from.

    Attributes
    ----------
    name
        Its name.
    space, space_hash
        The template of the kernels, and the hash of its source.
    device
        The device, by its short name.
    measured_by
        The GPU, in words.
    versions
        Versions of driver, torch, compiler and protocol.
    """

    name: str
    space: str
    space_hash: str
    device: str
    measured_by: str
    versions: Mapping[str, str]


def grouped_dispatched(
    products: Sequence[tuple[MeasuredTable, GroupedTimes]],
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> list[GroupedDispatched]:
    """The ranges of tokens of grouped products, with their kernels; a kernel that the store lacks is compiled again.

    By a process that stands by after that, unless `standby` is False; see `CompileOptions.standby`.

    Raises
    ------
    ExportError
        If the kernels rely on offsets that are right, or one can't be had as it was measured.
    StoreError, ArtifactError
        If an artifact can't be written or is damaged.
    """
    for source, _ in products:
        if not find_template(source.space, named).careful:
            raise ExportError(
                f"kernels of {source.space} rely on offsets that are right, and a model may have others: export a "
                "table of a space that does not, such as grouped_gemm_sm90"
            )
    # A pair is in no store before: it is compiled, and the kernels of the next product are chosen meanwhile.
    threads = ThreadPoolExecutor(available_cores(), "kernels")
    try:
        build = partial(_built, store=store, named=named, standby=standby)
        chosen = [_chosen(source, times, build, threads) for source, times in products]
        return [each.dispatched() for each in chosen]
    finally:
        threads.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Chosen:
    """The ranges of a product, whose kernels are being built."""

    source: MeasuredTable
    times: GroupedTimes
    stretches: Sequence[GroupedStretch]
    building: Mapping[tuple[int | None, Second | None], Future[tuple[str, Kernel, Path]]]

    def dispatched(self) -> GroupedDispatched:
        """The ranges, when their kernels are built."""
        source, times, found = self.source, self.times, self.stretches
        built = {which: future.result() for which, future in self.building.items()}
        digests = {which: digest for which, (digest, _, _) in built.items()}
        ranges = [Range(each.low, each.high, digests.get(_of(each), ""), _measured(times, each)) for each in found]
        dispatch = GroupedDispatch(
            problem=times.product,
            ranges=tuple(ranges),
            table=source.name,
            measured_by=source.measured_by,
            versions=dict(source.versions),
            sizes=times.sizes,
            routings=tuple(dict.fromkeys(str(problem.routing) for problem in times.problems)),
            over_library=over_library(times, found),
        )
        kernels = {digest: (kernel, path) for digest, kernel, path in built.values()}
        return GroupedDispatched(source.device, dispatch, kernels)


def _chosen(
    source: MeasuredTable,
    times: GroupedTimes,
    build: Callable[[MeasuredTable, GroupedTimes, GroupedStretch], tuple[str, Kernel, Path]],
    threads: ThreadPoolExecutor,
) -> _Chosen:
    expected = outlook(times)
    found = grouped_stretches(expected, choose_grouped(expected))
    serving = {_of(each): each for each in found if each.kernel is not None}
    building = {which: threads.submit(build, source, times, each) for which, each in serving.items()}
    return _Chosen(source, times, found, building)


def _of(stretch: GroupedStretch) -> tuple[int | None, Second | None]:
    """The kernels that serve a range: the same kernel may serve several."""
    return stretch.kernel, stretch.second


def _built(
    source: MeasuredTable,
    times: GroupedTimes,
    stretch: GroupedStretch,
    store: ArtifactStore,
    named: Named,
    standby: bool,
) -> tuple[str, Kernel, Path]:
    """The kernel of a range, or the two of a pair as one: see `built_kernel`."""
    space, configurations = source.space, [times.configurations[number] for number in stretch.kernels]
    if reason := obstacle(times.template, source.space_hash):
        raise ExportError(f"table {source.name} {reason}")
    configuration, space_hash, known = configurations[0], source.space_hash, named
    if stretch.second is not None:
        pairs: KernelTemplate = load(times.template.pairs, SpaceError)
        space, space_hash, known = pairs.name, pairs.source_hash, {**named, pairs.name: pairs}
        configuration = pair_of(configurations[0], configurations[1], stretch.second.rule)
    of_table = f"table {source.name}"
    wanted = Wanted(space, space_hash, configuration, times.product, source.versions, of_table)
    return built_kernel(wanted, find_device(source.device).arch, store, known, standby)


def _measured(times: GroupedTimes, stretch: Stretch) -> bool:
    """Whether a number of tokens in a range was measured."""
    return any(stretch.low <= size <= stretch.high for size in times.sizes)


def over_library(times: GroupedTimes, found: Sequence[GroupedStretch]) -> float:
    """The largest time over the library's of what serves the measured problems, at the far end of its interval."""
    return float(served_ratio(times, found, far=True).max())
