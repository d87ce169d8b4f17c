"""From dispatchers to a bundle: their kernels, and the ranges of m by which a model chooses among them."""

from collections.abc import Sequence
from dataclasses import replace

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.dispatch.dispatcher import SLOWER, Dispatcher
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.steps import Grid
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.from_studies import Dispatched, exportable, kernel_of
from tilescout.search.export.ranges import Dispatch, Range
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, ExportError, SpaceError, one_line
from tilescout.spaces.templates import NONE_NAMED, Named


def dispatched(
    dispatchers: Sequence[Dispatcher],
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> list[Dispatched]:
    """The ranges of dispatchers with their kernels; a kernel that the store lacks is compiled again.

    Parameters
    ----------
    dispatchers
        The dispatchers.
    store
        Compiled kernels.
    named
        Templates that they may be of, beside those that tilescout and installed packages bring.
    standby
        Whether a process may stand by for what is compiled, as `CompileOptions.standby` says.

    Raises
    ------
    ExportError
        If nothing of one was measured, or a kernel can't be had as it was measured.
    StoreError, ArtifactError
        If an artifact can't be written or is damaged.
    """
    return [_dispatched(dispatcher, store, named, standby) for dispatcher in dispatchers]


def _dispatched(dispatcher: Dispatcher, store: ArtifactStore, named: Named, standby: bool) -> Dispatched:
    if not dispatcher.points or not dispatcher.versions:
        raise ExportError(
            f"nothing of the dispatcher {dispatcher.name} was measured on a GPU, and a bundle holds only what was: "
            "measure it first"
        )
    if not dispatcher.kernels:
        raise ExportError(f"the library serves all rows of {dispatcher.name}: there is no kernel to export")
    _check_legal(dispatcher, kernels_of(dispatcher, named))
    kernels = [
        kernel_of(_outcome(dispatcher, at), _arch(dispatcher), store, named, standby)
        for at in range(len(dispatcher.kernels))
    ]
    digests: dict[int | None, str] = {None: "", **{number: digest for number, (digest, _, _) in enumerate(kernels)}}
    ranges = tuple(
        Range(each.low, each.high, digests[each.kernel], dispatcher.is_proven(each)) for each in dispatcher.stretches
    )
    ratios = dispatcher.ratios()
    if not ratios:
        raise ExportError(f"no kernel of {dispatcher.name} raced at an m that it serves: measure the dispatcher again")
    dispatch = Dispatch(
        problem=dispatcher.problem,
        ranges=ranges,
        dispatcher=dispatcher.name,
        measured_by=dispatcher.measured_by,
        versions=dict(dispatcher.versions),
        sizes=tuple(point.m for point in dispatcher.points),
        over_library=max(ratios),
    )
    return Dispatched(
        device=dispatcher.device,
        dispatch=dispatch,
        kernels={digest: (kernel, path) for digest, kernel, path in kernels},
    )


def kernels_of(dispatcher: Dispatcher, named: Named = NONE_NAMED) -> Kernels:
    """The kernels of a dispatcher, with their templates.

    Raises
    ------
    ExportError
        If a space is not known here, or TorchInductor can't be told to run its kernels.
    """
    templates = {name: exportable(name, named) for name in dispatcher.hashes}
    device = find_device(dispatcher.device)
    found = tuple(templates[space] for space in dispatcher.spaces)
    return Kernels(device, dispatcher.problem, dispatcher.kernels, found)


def _check_legal(dispatcher: Dispatcher, kernels: Kernels) -> None:
    """Refuse a kernel that serves an m for which its template does not allow it: it may read outside its operands."""
    try:
        kernels.check_knobs()
        legal = Grid.of(kernels, dispatcher.most_rows).legal
    except (*MALFORMED, SpaceError) as error:
        spaces = " and ".join(dispatcher.hashes)
        raise ExportError(f"the kernels of {dispatcher.name} are none of {spaces}: {one_line(error)}") from error
    for each in dispatcher.stretches:
        if each.kernel is not None and not legal[each.kernel, each.low - 1 : each.high].all():
            raise ExportError(
                f"{dispatcher.name} has kernel {each.kernel + 1} serve {each.low} to {each.high} rows, and it is not "
                "legal for all of them: measure it again"
            )


def _most_rows(dispatcher: Dispatcher, number: int) -> int:
    """The most rows that a kernel serves, with which it needs the most memory."""
    return max((each.high for each in dispatcher.stretches if each.kernel == number), default=1)


def _outcome(dispatcher: Dispatcher, number: int) -> Outcome:
    """A kernel of a dispatcher as the outcome of a search has it."""
    reason = f"at most {SLOWER:.0%} slower than the library at each measured m that it serves"
    evidence = Evidence(dispatcher.name, reason, measured_by=dispatcher.measured_by, versions=dispatcher.versions)
    space = dispatcher.spaces[number]
    return Outcome(
        replace(dispatcher.problem, m=_most_rows(dispatcher, number)),
        space,
        dispatcher.hashes[space],
        dispatcher.device,
        Choice.OURS,
        evidence,
        dispatcher.kernels[number],
    )


def _arch(dispatcher: Dispatcher) -> str:
    return find_device(dispatcher.device).arch
