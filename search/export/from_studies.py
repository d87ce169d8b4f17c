"""From finished studies to a bundle: their decisions, and the kernels of these."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.making import describe
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, hold, write_bundle
from tilescout.search.export.decisions import Decision, Outcome, best_of, judge
from tilescout.search.export.grouped.dispatch import GroupedDispatch, grouped_family
from tilescout.search.export.ranges import Dispatch, family
from tilescout.search.studies.places import result_of, study_store
from tilescout.spaces.checksums import check_sealed
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, ExportError, ProblemError, SpaceError, StoreError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import NONE_NAMED, KernelTemplate, Named, find_template, template_names
from tilescout.spaces.texts import number_of, some_of
from tilescout.spaces.workloads import load_workload

_LOG = logging.getLogger(__name__)
COMPILER = "nvidia-cutlass-dsl"
_RESULT = ".json"
_LARGEST = 1 << 26  # bytes of a result; one has some kB
_NAMED = 4  # studies in a message, at most


@dataclass(frozen=True)
class Decided:
    """The decisions of studies.

    Attributes
    ----------
    outcomes
        One a problem and device, at least one.
    left_out
        Why nothing can be exported of the other studies, by their names.
    unfinished
        The names of studies whose search did not end, which have decided nothing yet.
    """

    outcomes: Sequence[Outcome]
    left_out: Mapping[str, str]
    unfinished: Sequence[str] = ()


def read_outcomes(names: Sequence[str], studies: Path | str, named: Named = NONE_NAMED) -> Decided:
    """The decisions of studies that can be handed to TorchInductor.

    Parameters
    ----------
    names
        Names of studies in `studies`, or files: journals, or results that ``tune --json`` wrote. Without any, every
        study there that ended.
    studies
        The folder of the studies' journals, or the URL of a database.
    named
        Templates that studies may be of, beside those that tilescout and installed packages bring.

    Raises
    ------
    ExportError
        If there is nothing that can be exported, or a named study did not end.
    StoreError
        If a study or file can't be read.
    """
    if names:
        records = {name: _read(name, studies) for name in names}
        open_ended = [name for name, record in records.items() if record is None]
        if open_ended:
            raise ExportError(f"study {open_ended[0]} did not end: resume its search first")
    else:
        records = study_store(studies).results()
    found, left_out, unfinished = [], {}, []
    for name, record in records.items():
        if record is None:
            unfinished.append(name)
            continue
        try:
            found.append(_judge(record, named))
        except ExportError as error:
            left_out[name] = str(error)
    if not found:
        them = "it" if len(unfinished) == 1 else "them"
        waiting = [f"{describe_unfinished(unfinished)}: resume {them} first"] if unfinished else []
        if left_out:
            raise ExportError("; ".join([f"nothing can be exported: {describe_left_out(left_out)}", *waiting]))
        told = "".join(waiting) or "search first, or name a study that is elsewhere"
        raise ExportError(f"no study in {study_store(studies).name} ended: {told}")
    return Decided(best_of(found), left_out, unfinished)


def describe_left_out(left_out: Mapping[str, str]) -> str:
    """The studies of which nothing can be exported, and why, in a line."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(those)} ({reason})" for reason, those in names.items())


def describe_unfinished(unfinished: Sequence[str]) -> str:
    """The studies whose search did not end, in a few words: how many, and the first of them."""
    searches = number_of(len(unfinished), "search", "searches")
    return f"{searches} did not end ({some_of(unfinished, _NAMED)})"


def _read(name: str, studies: Path | str) -> dict[str, Any] | None:
    if not name.endswith(_RESULT):
        return result_of(name, studies)
    try:
        record = parse_json(read_regular(Path(name), _LARGEST))
    except OSError as error:
        raise StoreError(f"can't read {name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{name} is no result of a search: it is no JSON ({one_line(error, 80)})") from error
    return record if isinstance(record, dict) else {}


def _judge(record: Mapping[str, Any], named: Named) -> Outcome:
    """Decide by the result of a study.

    Raises
    ------
    ExportError
        If that can't be exported.
    """
    try:
        exportable(record["space"], named)
        if not check_sealed(record):
            _LOG.info(
                "the result of %s has no checksum, as an older tilescout wrote it: it is unchecked",
                one_line(str(record["study"]), 100),
            )
        outcome = judge(record, named)
        reason = why_not(outcome, find_template(outcome.space, named))  # an algorithm is of another space
    except SpaceError as error:
        raise ExportError(one_line(error)) from error
    except (*MALFORMED, ProblemError) as error:
        raise ExportError(
            f"it is no result that can be exported, {type(error).__name__}: {one_line(error, 80)}; it was written by "
            "an older tilescout, or is something else"
        ) from error
    if reason:
        raise ExportError(reason)
    return outcome


def exportable(space: str, named: Named) -> KernelTemplate:
    """The template of this name.

    Raises
    ------
    ExportError
        If it is not known here, or TorchInductor can't be told to run its kernels.
    """
    if space not in named and space not in template_names():
        raise ExportError(f"the space {one_line(repr(space), 80)} is not known here: name it if it is your own")
    template = find_template(space, named)
    if issubclass(load_workload(template.workload).problem, GroupedProblem):
        raise ExportError(
            "a study of a grouped product knows one number of tokens: record a table of several, and export that"
        )
    if not load_workload(template.workload).inductor:
        raise ExportError(f"{space} computes no matrix product, and TorchInductor is handed nothing else")
    return template


def why_not(outcome: Outcome, template: KernelTemplate) -> str:
    """Why no bundle can hold the kernel of an outcome; empty if one can, or the library's was chosen."""
    if outcome.configuration is None:
        return ""
    return _too_few_bits(template, outcome.problem) or obstacle(template, outcome.space_hash)


def _too_few_bits(template: KernelTemplate, problem: GemmProblem) -> str:
    """Why kernels of a template may not take the place of an accurate product; empty if they may."""
    if not template.fast_sums or problem.element.bytes != 1 or problem.fast:
        return ""
    return (
        f"{template.name} keeps sums of 8-bit products in fewer bits than torch._scaled_mm does by default, whose "
        f"place a bundle's kernels take: search {replace(problem, fast=True)}, which is use_fast_accum=True"
    )


def obstacle(template: KernelTemplate, space_hash: str) -> str:
    """Why a template's kernels can't be had as they were measured; empty if they can."""
    if template.loader:
        return ""  # an algorithm is the library's, whatever else changes here
    if template.source_hash != space_hash:
        return (
            f"measured kernels of another version of {template.name}: they can't be built any more; search again, or "
            "export with the tilescout that searched"
        )
    return ""


@dataclass(frozen=True)
class Dispatched:
    """The ranges of m of a product, with their kernels.

    Attributes
    ----------
    device
        The device that they were measured on, by its short name.
    dispatch
        The ranges.
    kernels
        By digest: what a bundle records of a kernel, and where its shared object lies.
    """

    device: str
    dispatch: Dispatch
    kernels: Mapping[str, tuple[Kernel, Path]]


@dataclass(frozen=True)
class GroupedDispatched:
    """The ranges of tokens of a grouped product, with their kernels; as `Dispatched` has those of m."""

    device: str
    dispatch: GroupedDispatch
    kernels: Mapping[str, tuple[Kernel, Path]]


def make_bundle(
    outcomes: Sequence[Outcome],
    store: ArtifactStore,
    out: Path,
    named: Named = NONE_NAMED,
    dispatched: Sequence[Dispatched] = (),
    grouped: Sequence[GroupedDispatched] = (),
    standby: bool = CompileOptions.standby,
) -> Bundle:
    """Write a bundle of what was decided; a kernel that the store lacks is compiled again.

    Parameters
    ----------
    outcomes
        What was decided.
    store
        Compiled kernels.
    out
        The directory to be.
    named
        Templates that studies may be of, beside those that tilescout and installed packages bring.
    dispatched
        Products whose kernel is chosen by ranges of m, one each.
    grouped
        Grouped products, one each.
    standby
        Whether a process may stand by for what is compiled, as `CompileOptions.standby` says.

    Raises
    ------
    ExportError
        If the outcomes are of several devices, two lists of ranges are of one product, or a kernel can't be had as it
        was measured.
    StoreError, ArtifactError
        If the bundle can't be written, or an artifact is damaged.
    """
    ranged: list[Dispatched | GroupedDispatched] = [*dispatched, *grouped]
    devices = sorted({*(outcome.device for outcome in outcomes), *(each.device for each in ranged)})
    if len(devices) != 1:
        raise ExportError(
            f"the studies are of several devices ({', '.join(devices)}) and a bundle is for one: "
            "name the studies of one"
        )
    device = devices[0]
    arch = find_device(device).arch
    _check_apart("dispatchers", [family(each.dispatch.problem) for each in dispatched])
    _check_apart("tables", [grouped_family(each.dispatch.problem) for each in grouped])
    kernels: dict[str, tuple[Kernel, Path]] = {}
    for each in ranged:
        for digest, (kernel, path) in each.kernels.items():
            hold(kernels, digest, kernel, path)
    decisions = decisions_of(outcomes, kernels, arch, store, named, standby)
    return write_bundle(
        out,
        arch,
        device,
        installed_versions(),
        decisions,
        kernels,
        named=named,
        dispatches=[each.dispatch for each in dispatched],
        grouped=[each.dispatch for each in grouped],
    )


def _check_apart(sources: str, products: Sequence[str]) -> None:
    """Refuse to take ranges of one product from two sources."""
    for product, count in Counter(products).most_common(1):
        if count > 1:
            raise ExportError(f"two {sources} are of {product}: name one of them")


def decisions_of(
    outcomes: Sequence[Outcome],
    kernels: dict[str, tuple[Kernel, Path]],
    arch: str,
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> list[Decision]:
    """The decisions of outcomes, whose kernels are put among those of a bundle by `hold`.

    Raises
    ------
    ExportError
        As `kernel_of` does.
    """
    decisions = []
    for outcome in outcomes:
        digest = ""
        if outcome.configuration is not None:
            digest, kernel, shared_object = kernel_of(outcome, arch, store, named, standby)
            hold(kernels, digest, kernel, shared_object)
        decisions.append(Decision(outcome.problem, outcome.choice, outcome.evidence, digest))
    return decisions


def kernel_of(
    outcome: Outcome,
    arch: str,
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> tuple[str, Kernel, Path]:
    """The kernel of an outcome that chose ours: its digest, its record in a bundle, and where it lies.

    Raises
    ------
    ExportError
        If it can't be had as it was measured, or keeps fewer bits of sums than the problem asks for.
    """
    assert outcome.configuration is not None
    if reason := _too_few_bits(find_template(outcome.space, named), outcome.problem):
        raise ExportError(f"{outcome.evidence.study}: {reason}")
    wanted = Wanted(
        outcome.space,
        outcome.space_hash,
        outcome.configuration,
        outcome.problem,
        outcome.evidence.versions,
        f"study {outcome.evidence.study}",
        outcome.library,
    )
    return built_kernel(wanted, arch, store, named, standby)


@dataclass(frozen=True)
class Wanted:
    """The makings of a kernel.

    Attributes
    ----------
    space, space_hash, configuration
        The template of the kernel, the hash of its source when it was measured, and its configuration.
    problem
        A problem of its types.
    versions
        Versions of driver, torch, compiler and protocol of that day.
    source
        The study or table that it was measured in, as in a message.
    library
        The version of the library whose algorithm it is; empty if it is none.
    """

    space: str
    space_hash: str
    configuration: Configuration
    problem: Problem
    versions: Mapping[str, str]
    source: str
    library: str = ""


def built_kernel(
    wanted: Wanted,
    arch: str,
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> tuple[str, Kernel, Path]:
    """The digest of a kernel, its record in a bundle, and where it lies; one that the store lacks is compiled again.

    Raises
    ------
    ExportError
        If it can't be had as it was measured.
    """
    template = find_template(wanted.space, named)
    if reason := obstacle(template, wanted.space_hash):
        raise ExportError(f"{wanted.source} {reason}")
    compiler = "" if template.loader else wanted.versions.get(COMPILER, "")
    key = ArtifactKey(
        template.name, template.source_hash, wanted.configuration, wanted.problem.signature, arch, compiler
    )
    artifact = store.find(key)
    if artifact is None and template.loader:
        artifact = describe(template, key, store)
    elif artifact is None:
        artifact = _compile(template, key, store, wanted.problem, standby)
    if not artifact.ok:
        raise ExportError(f"the kernel of {wanted.problem} does not compile any more: {artifact.error}")
    kernel = Kernel(
        file=f"{KERNELS}/{key.digest}.{'json' if template.loader else 'so'}",
        sha256=artifact.sha256,
        function=artifact.function,
        workload=template.workload,
        blocks_per_cluster=template.blocks_per_cluster(wanted.configuration),
        key=key.to_dict(),
        library=wanted.library,
        scratch_bytes=0 if template.loader else template.scratch_bytes(wanted.configuration, wanted.problem),
    )
    return key.digest, kernel, artifact.path


def _compile(
    template: KernelTemplate, key: ArtifactKey, store: ArtifactStore, problem: Problem, standby: bool
) -> Artifact:
    if key.compiler != version(COMPILER):
        raise ExportError(
            f"the kernel of {problem} is not in the store {store.root}, and the compiler that made it "
            f"({COMPILER} {key.compiler or 'unknown'}) is not the one installed ({version(COMPILER)})"
        )
    options = CompileOptions(processes=1, standby=standby)
    with CompilePool(template, key.signature, key.arch, store, options) as pool:
        made = pool.submit(key.configuration).result()
    if not isinstance(made, Artifact):
        raise ExportError(f"the kernel of {problem} does not compile any more: {made.error}")
    return made


def installed_versions() -> dict[str, str]:
    """The versions of what makes a bundle, as the bundle records them."""
    found = {}
    for package in ("tilescout", COMPILER, "apache-tvm-ffi"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout
            found[package] = "not installed"
    return found
