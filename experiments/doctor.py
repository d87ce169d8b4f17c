"""``tilescout doctor``: what is installed, what is missing, which GPU, which table."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import click
from packaging.requirements import Requirement
from rich.console import Console
from rich.markup import escape

from tilescout.experiments.options import examples, store_option
from tilescout.search.evaluate.artifacts import ArtifactStore
from tilescout.search.evaluate.binary import CUOBJDUMP, find_cuobjdump
from tilescout.search.evaluate.compile import find_linker
from tilescout.search.evaluate.gpus import visible_gpus
from tilescout.search.evaluate.runtime import runtime_libraries
from tilescout.search.evaluate.table import Table
from tilescout.search.sources import shipped_tables
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, SpaceError, TilescoutError
from tilescout.spaces.templates import find_template, other_spaces, template_names


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
        What was found, and what to do about it.
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
def doctor(store: Path) -> int:
    """Look at what tilescout needs; exit code 1 if something is missing."""
    console = Console()
    marks = {"ok": "[green]ok     [/green]", "missing": "[red]missing[/red]", "note": "[yellow]note   [/yellow]"}
    findings = list(examine(store))
    for finding in findings:
        console.print(
            f"{marks[finding.state]} {finding.what}: {escape(finding.detail)}", highlight=False, soft_wrap=True
        )
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def examine(store: Path) -> Iterator[Finding]:
    """Everything that is looked at, in order."""
    yield Finding("Python", "ok", sys.version.split()[0])
    yield from _packages()
    yield _try("C compiler", find_linker, "installs with your system's compiler package")
    yield _try("cuobjdump", find_cuobjdump, "")  # the package's, or the CUDA toolkit's
    yield _try("runtime libraries", lambda: ", ".join(path.name for path in runtime_libraries()), "")
    yield _try("store", lambda: str(ArtifactStore(store / "artifacts").root), "")
    yield from _spaces()
    yield from _gpus()
    yield from _tables()


def _try(what: str, look: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(what, "ok", look())
    except TilescoutError as error:
        return Finding(what, "missing", f"{error}{'; ' if remedy else ''}{remedy}")


def _packages() -> Iterator[Finding]:
    for line in requires("tilescout") or []:
        requirement = Requirement(line)
        if requirement.name == CUOBJDUMP or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Finding(requirement.name, "missing", f"pip install '{requirement}'")
            continue
        if requirement.specifier.contains(found, prereleases=True):
            yield Finding(requirement.name, "ok", found)
        else:
            yield Finding(requirement.name, "missing", f"{found} is installed, {requirement.specifier} is needed")


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
    """What a space builds for; nothing if it can't be loaded, which is a finding of its own."""
    try:
        return find_template(name).archs
    except TilescoutError:
        return ()


def _tables() -> Iterator[Finding]:
    paths = shipped_tables()
    if not paths:
        yield Finding("table", "note", "none is shipped: replaying needs --table")
    for path in paths:
        try:
            table = Table.read(path)
        except TilescoutError as error:
            yield Finding("table", "missing", str(error))
            continue
        yield Finding("table", "ok", f"{path.name}: {table.card.space} on {table.card.product}, {len(table):,} rows")
