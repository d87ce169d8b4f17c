"""``tilescout doctor``: what is installed, what is missing, which GPU, which table."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import click
from packaging.requirements import Requirement
from rich.markup import escape

from tilescout.experiments.commands.cli import as_options
from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.options import examples, json_option, storage_option, store_option
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.experiments.commands.resuming import how_to_deliver
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.binaries import CUOBJDUMP, find_cuobjdump
from tilescout.search.build.loading import runtime_libraries
from tilescout.search.build.making import find_linker
from tilescout.search.build.standby import running
from tilescout.search.engines.gpus import driver_version, visible_gpus
from tilescout.search.samplers import find_sampler, other_samplers
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.places import study_store
from tilescout.search.studies.study_store import StudyStore
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.search.tracking.standing.unlogged import unlogged
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, SamplerError, SpaceError, StoreError, TilescoutError
from tilescout.spaces.templates import find_template, other_spaces, template_names
from tilescout.spaces.texts import number_of

_IMPORTED = ("torch", "optuna", "sklearn", "mlflow", "cutlass")
"""What commands and their processes wait for. All but the last took 4.2 s to import with bytecode, and 9.4 s without
(two cores, CPU build of torch, 2026-11-29)."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    what
        The thing.
    state
        ``ok``, ``missing`` (something will not work) or ``note`` (something works otherwise).
    detail
        The finding, and the remedy.
    """

    what: str
    state: str
    detail: str


@click.command(
    epilog=examples(
        "tilescout doctor",
        "tilescout doctor --store results",
    )
)
@store_option
@storage_option
@click.option("--table", "tables", type=TABLE, multiple=True, help="A table to look at; repeatable.")
@json_option
def doctor(store: Path, storage: str | None, tables: tuple[Path, ...], json_path: Path | None) -> int:
    """Look at what tilescout needs; exit code 1 if something is missing."""
    check_result(json_path)
    console = console_beside(json_path)
    marks = {"ok": "[green]ok     [/green]", "missing": "[red]missing[/red]", "note": "[yellow]note   [/yellow]"}
    findings = [replace(each, detail=as_options(each.detail)) for each in examine(store, storage, tables)]
    for finding in findings:
        console.say(f"{marks[finding.state]} {escape(f'{finding.what}: {finding.detail}')}", markup=True)
    write_result(json_path, [asdict(finding) for finding in findings])
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(store: Path, storage: str | None = None, tables: Sequence[Path] = ()) -> Iterator[Finding]:
    """Look at everything in order: the machine, the packages, the shipped tables, and the database and tables named."""
    yield Finding("Python", "ok", sys.version.split()[0])
    yield from _packages()
    yield from _bytecode()
    yield _try("C compiler", find_linker, "installs with your system's compiler package")
    yield _try("cuobjdump", find_cuobjdump, "")  # the package's, or the CUDA toolkit's
    yield _try("runtime libraries", lambda: ", ".join(path.name for path in runtime_libraries()), "")
    yield _try("store", lambda: _checked_artifacts(artifacts(store)), "")
    yield from _standing_by()
    yield from _unlogged(studies(store))
    yield from _spaces()
    yield from _samplers()
    if storage is not None:
        yield _try("storage", lambda: _checked(study_store(storage)), "")
    yield _driver()
    yield from _gpus()
    yield from _tables(tables)


def _checked_artifacts(root: Path) -> str:
    """A store of artifacts that can be written, or made; it is not made here."""
    ArtifactStore(root, to_read=True)
    if not _can_be_written(root):
        raise StoreError(f"can't write the artifact store {root}: choose another with `store`")
    return str(root) if os.path.lexists(root) else f"{root}, which the first kernel makes"


def _can_be_written(folder: Path) -> bool:
    """Whether a folder can be written, or made where it is not there."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    return os.access(there, os.W_OK | os.X_OK)


def _checked(store: StudyStore) -> str:
    store.check()
    return store.name


def _try(what: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(what, "ok", look())
    except TilescoutError as error:
        return Finding(what, "missing", f"{error}{'; ' if remedy else ''}{remedy}")


def _packages() -> Iterator[Finding]:
    for line in requires("tilescout") or []:
        requirement = Requirement(line)
        if requirement.name != CUOBJDUMP and _applies(requirement, ""):
            yield _package(requirement, requirement.name, "missing", f"pip install '{requirement.name}{{}}'")
    for extra in sorted(set(metadata("tilescout").get_all("Provides-Extra") or []) - {"dev"}):
        for requirement in map(Requirement, requires("tilescout") or []):
            if _applies(requirement, extra) and not _applies(requirement, ""):
                remedy = f"only for what the extra brings: pip install 'tilescout[{extra}]'"
                yield _package(requirement, f"{requirement.name} (extra {extra})", "note", remedy)


def _bytecode() -> Iterator[Finding]:
    """The packages that every process compiles anew as it imports them, for Python can't keep what it compiled."""
    anew: dict[Path, list[str]] = {}
    for name in _IMPORTED:
        found = find_spec(name)
        if found is not None and found.has_location and found.origin and not _is_kept(Path(found.origin)):
            anew.setdefault(Path(found.origin).parent.parent, []).append(name)
    for folder, names in anew.items():
        remedy = f"unset PYTHONDONTWRITEBYTECODE, or compile them once: {sys.executable} -m compileall -q {folder}"
        yield Finding(
            "bytecode", "note", f"each process compiles {', '.join(names)} anew, which takes seconds: {remedy}"
        )


def _is_kept(source: Path) -> bool:
    """Whether the bytecode of a module is kept, or will be once it is imported."""
    kept = Path(cache_from_source(source))
    return kept.is_file() or (not sys.dont_write_bytecode and _can_be_written(kept.parent))


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _package(requirement: Requirement, what: str, state: str, remedy: str) -> Finding:
    """Whether a package is there in a version that will do; `state` if not, with `remedy`, {} for the versions."""
    remedy = remedy.format(requirement.specifier)
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return Finding(what, state, f"not installed; {remedy}")
    if requirement.specifier.contains(found, prereleases=True):
        return Finding(what, "ok", found)
    return Finding(what, state, f"{found} is installed, {requirement.specifier} is needed; {remedy}")


def _driver() -> Finding:
    """The driver, and whether it is new enough for the CUDA that torch was built with."""
    version_ = driver_version()
    if version_ is None:
        if Path("/dev/nvidiactl").exists():
            return Finding("driver", "missing", "there is an NVIDIA GPU, but no libcuda.so.1: install NVIDIA's driver")
        return Finding("driver", "note", "none; nothing can be measured here")
    import torch

    built = torch.version.cuda
    shown = ".".join(map(str, version_))
    if built is not None and version_[0] < int(built.split(".")[0]):
        return Finding(
            "driver",
            "missing",
            f"it is for CUDA {shown}, torch for CUDA {built}: install a newer driver, or such a torch",
        )
    return Finding("driver", "ok", f"for CUDA {shown}" + ("" if built else "; but torch is a build without CUDA"))


def _spaces() -> Iterator[Finding]:
    others = other_spaces()
    for name in template_names():
        try:
            template = find_template(name)
            found = f"for {', '.join(template.archs)}, source {template.source_hash[:12]}"
        except SpaceError as error:
            yield Finding(name, "note", str(error))  # an extra that is not installed, or a package that is broken
            continue
        yield Finding(name, "ok", found + (f", of {others.usable[name].distribution}" if name in others.usable else ""))
    for name, reason in others.refused.items():
        yield Finding(name, "note", reason)


def _standing_by() -> Iterator[Finding]:
    """The processes that outlived a command, so that the next need not import what they have."""
    for each in running():
        minutes = number_of(round(each.seconds / 60), "minute")
        detail = f"process {each.pid} has {each.bytes >> 20} MiB, ends {minutes} after its last use"
        yield Finding(f"standing by to {each.what}", "ok", detail)


def _unlogged(place: Path | str) -> Iterator[Finding]:
    """The studies of a folder that MLflow did not get, with the way to deliver each."""
    if lacking := unlogged(place):
        known = study_store(place).names()
        for name, why in lacking.items():
            yield Finding(f"study {name}", "missing", f"not in MLflow: {why}; {how_to_deliver(name, known)}")


def _samplers() -> Iterator[Finding]:
    """The samplers that installed packages register."""
    others = other_samplers()
    for name, registered in others.usable.items():
        try:
            summary = find_sampler(name).summary
        except SamplerError as error:
            yield Finding(f"sampler {name}", "note", str(error))
            continue
        yield Finding(f"sampler {name}", "ok", f"{summary.rstrip('.')}, of {registered.distribution}")
    for name, reason in others.refused.items():
        yield Finding(f"sampler {name}", "note", reason)


def _gpus() -> Iterator[Finding]:
    products = visible_gpus()
    if not products:
        yield Finding("GPU", "note", "none; searches replay recorded tables, kernels still compile")
    for number, product in enumerate(products):
        try:
            device = find_device(product)
        except DeviceError as error:
            yield Finding(f"GPU {number}", "note", f"{product}: {error}")
            continue
        spaces = [name for name in template_names() if device.arch in _archs(name)]
        state = "ok" if spaces else "note"
        yield Finding(f"GPU {number}", state, f"{product} ({device.arch}), tunes {', '.join(spaces) or 'nothing'}")


def _archs(name: str) -> tuple[str, ...]:
    """The architectures that a space builds for; none if it can't be loaded, which is a finding of its own."""
    try:
        return find_template(name).archs
    except TilescoutError:
        return ()


def _tables(others: Sequence[Path]) -> Iterator[Finding]:
    paths = [*shipped_tables(), *others]
    if not shipped_tables():
        yield Finding("table", "note", "none is shipped: replaying needs --table")
    for path in paths:
        try:
            table = Table.read(path)
        except TilescoutError as error:
            yield Finding("table", "missing", str(error))
            continue
        what = f"{path.name}: {table.card.space} on {table.card.product}, {number_of(len(table), 'row')}"
        doubt = _doubt(table)
        yield Finding("table", "note" if doubt else "ok", what + doubt)


def _doubt(table: Table) -> str:
    """The reason not to trust a table; empty if it is of today's kernels."""
    if table.card.space not in template_names():
        return ""
    try:
        template = find_template(table.card.space)
        if not table.fits(template):
            return f"; its knobs are not those of today's {template.name}, record it again"
        return f"; recorded with another version of {template.name}" if table.stale_for(template) else ""
    except SpaceError as error:  # of an extra that is not installed, or of a package that is broken
        return f"; whether it is of today's kernels is not known: {error}"
