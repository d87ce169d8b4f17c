"""From measured times of grouped products to a bundle: their kernels, and the ranges of tokens that each serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.dispatch.dispatcher import used
from tilescout.search.dispatch.grouped import GroupedTimes, choose_grouped, grouped_stretches
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.export.from_studies import GroupedDispatched, Wanted, built_kernel
from tilescout.search.export.grouped.dispatch import GroupedDispatch
from tilescout.search.export.ranges import Range
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ExportError
from tilescout.spaces.templates import NONE_NAMED, Named, find_template


@dataclass(frozen=True)
class Source:
    """Where measured times come from.

    Attributes
    ----------
    name
        The name of the table.
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
    source: Source, products: Sequence[GroupedTimes], store: ArtifactStore, named: Named = NONE_NAMED
) -> list[GroupedDispatched]:
    """The ranges of tokens of grouped products, with their kernels; a kernel that the store lacks is compiled again.

    Raises
    ------
    ExportError
        If the kernels rely on offsets that are right, or one can't be had as it was measured.
    StoreError, ArtifactError
        If an artifact can't be written or is damaged.
    """
    if not find_template(source.space, named).careful:
        raise ExportError(
            f"kernels of {source.space} rely on offsets that are right, and a model may have others: export a table of "
            "a space that does not, such as grouped_gemm_sm90"
        )
    return [_dispatched(source, times, store, named) for times in products]


def _dispatched(source: Source, times: GroupedTimes, store: ArtifactStore, named: Named) -> GroupedDispatched:
    found = grouped_stretches(times, choose_grouped(times))
    arch = find_device(source.device).arch
    digests: dict[int | None, str] = {None: ""}
    kernels = {}
    for number in used(found):
        wanted = Wanted(
            source.space,
            source.space_hash,
            times.configurations[number],
            times.product,
            source.versions,
            f"table {source.name}",
        )
        digests[number], kernel, path = built_kernel(wanted, arch, store, named)
        kernels[digests[number]] = (kernel, path)
    dispatch = GroupedDispatch(
        problem=times.product,
        ranges=tuple(Range(each.low, each.high, digests[each.kernel], _measured(times, each)) for each in found),
        table=source.name,
        measured_by=source.measured_by,
        versions=dict(source.versions),
        sizes=times.sizes,
        routings=tuple(dict.fromkeys(str(problem.routing) for problem in times.problems)),
        over_library=over_library(times, found),
    )
    return GroupedDispatched(source.device, dispatch, kernels)


def _measured(times: GroupedTimes, stretch: Stretch) -> bool:
    """Whether a number of tokens in a range was measured."""
    return any(stretch.low <= size <= stretch.high for size in times.sizes)


def over_library(times: GroupedTimes, found: Sequence[Stretch]) -> float:
    """The largest time over the library's of what serves the measured problems, at the far end of its interval."""
    worst = 1.0 if any(each.kernel is None for each in found) else 0.0
    for at, problem in enumerate(times.problems):
        kernel = next(each.kernel for each in found if each.low <= problem.tokens <= each.high)
        if kernel is not None:
            worst = max(worst, float(times.high[kernel, at]))
    return worst
