"""``tilescout studies`` and ``tilescout best``: what searches of a store found."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.completion import complete_studies
from tilescout.experiments.commands.listing import LIST, ListingGroup
from tilescout.experiments.commands.options import (
    examples,
    json_option,
    own_spaces_option,
    storage_option,
    store_option,
)
from tilescout.experiments.commands.outputs import check_mlflow, check_result, console_beside, write_result
from tilescout.experiments.commands.printing import print_result
from tilescout.experiments.commands.studies_diff import differences, incomparable
from tilescout.search.studies.answers import peers_of
from tilescout.search.studies.folders import studies as place_of
from tilescout.search.studies.places import read_study, study_store
from tilescout.search.studies.records import StudyResult
from tilescout.search.studies.study_store import NONE_YET, StudyStore
from tilescout.search.studies.trials import TRACKING_RUN
from tilescout.spaces.errors import NoResultError, ProblemError, StoreError
from tilescout.spaces.templates import Named, load_templates
from tilescout.spaces.terminal import Grid
from tilescout.spaces.texts import alternatives, plain

NAME = "gemm_sm90-4096x4096x4096-bf16-h200-live-sandwich-guided-s0"


@click.group(
    cls=ListingGroup,
    epilog=examples("tilescout studies", f"tilescout studies {NAME}", f"tilescout studies delete {NAME}"),
)
def studies() -> None:
    """List the studies of a store, as `list` does, show, compare or delete some."""


@studies.command(
    LIST,
    epilog=examples("tilescout studies list", f"tilescout studies list {NAME}", "tilescout studies list --json -"),
)
@click.argument("names", nargs=-1, shell_complete=complete_studies)
@own_spaces_option
@store_option
@storage_option
@json_option
def list_studies(
    names: tuple[str, ...], own_spaces: tuple[str, ...], store: Path, storage: str | None, json_path: Path | None
) -> None:
    """List the studies of the store, or show those in NAMES, also while they still run."""
    check_result(json_path)
    place, named, console = place_of(store, storage), load_templates(own_spaces), console_beside(json_path)
    if names:
        found = [read_study(name, place, named) for name in names]
        for result in found:
            print_result(result, console)
    else:
        found, unreadable = read_all(place, named)
        if found:
            console.print(_grid(found))
        elif not unreadable:
            console.say(f"there is no study in {study_store(place).name}: {NONE_YET}")
        for message in unreadable:
            console.say(message)
    write_result(json_path, [result.to_dict() for result in found])


@studies.command("show", epilog=examples(f"tilescout studies show {NAME}"))
@click.argument("names", nargs=-1, required=True, shell_complete=complete_studies)
@own_spaces_option
@store_option
@storage_option
@json_option
@click.pass_context
def show_studies(context: click.Context, /, **given: Any) -> None:
    """Show the studies in NAMES, also while they still run."""
    context.invoke(list_studies, **given)


@studies.command(
    "diff",
    epilog=examples(f"tilescout studies diff {NAME} {NAME.replace('guided', 'tpe')}"),
)
@click.argument("first", shell_complete=complete_studies)
@click.argument("second", shell_complete=complete_studies)
@own_spaces_option
@store_option
@storage_option
@json_option
def diff_studies(
    first: str, second: str, own_spaces: tuple[str, ...], store: Path, storage: str | None, json_path: Path | None
) -> None:
    """Show two studies side by side: what was searched, what was found, and the knobs that differ.

    A warning says where their times are not comparable.
    """
    check_result(json_path)
    place, named, console = place_of(store, storage), load_templates(own_spaces), console_beside(json_path)
    pair = read_study(first, place, named), read_study(second, place, named)
    grid = Grid(show_edge=False, pad_edge=False)
    for heading in ("", "first", "second"):
        grid.add_column(heading, overflow="fold")
    rows = differences(*pair)
    for name, values in rows.items():
        grid.add_row(name, *map(str, values))
    console.print(grid)
    doubts = incomparable(*pair)
    if doubts:
        console.say(f"not comparable: {', '.join(doubts)} differ")
    found = {name: list(values) for name, values in rows.items()}
    write_result(json_path, {"studies": [first, second], "not_comparable": doubts, "differences": found})


@studies.command("delete", epilog=examples(f"tilescout studies delete {NAME}"))
@click.argument("names", nargs=-1, required=True, shell_complete=complete_studies)
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@storage_option
def delete_studies(names: tuple[str, ...], yes: bool, store: Path, storage: str | None) -> None:
    """Delete the studies in NAMES with all their trials, and their runs in the MLflow store of the folder.

    Compiled kernels stay. MLflow keeps deleted runs, hidden, until `mlflow gc`.
    """
    from tilescout.search.tracking import delete_study
    from tilescout.search.tracking.standing.unlogged import clear

    folder = place_of(store, storage)
    place = study_store(folder)
    known = place.names()
    for name in names:
        if name not in known:
            raise place.missing(name)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("asking takes a terminal: --yes deletes without asking")
        click.confirm(f"delete {', '.join(names)}?", abort=True, err=True)
    database = store / "mlflow.db"
    uri = f"sqlite:///{database.absolute()}" if database.is_file() else None
    if uri is not None:
        check_mlflow(uri, store)  # of a study that is gone, nobody could delete the runs
    for name in dict.fromkeys(names):
        run_id = _run_of(place, name)
        place.delete(name)
        if storage is None:
            clear(folder, name)
        runs = delete_study(uri, name, run_id) if uri is not None and run_id else 0
        click.echo(f"deleted {name}, and {runs} of its runs in MLflow", err=True)


def _run_of(place: StudyStore, name: str) -> str:
    """The run of MLflow that a study names; empty if it names none, or can't be read."""
    with suppress(StoreError):
        return str(place.attributes(name).get(TRACKING_RUN, ""))
    return ""


@click.command(
    epilog=examples(
        "tilescout best 4096x4096x4096:bf16",
        "tilescout best 4096x4096x4096:bf16 --json -",
    )
)
@click.argument("problem")
@own_spaces_option
@store_option
@storage_option
@json_option
def best(problem: str, own_spaces: tuple[str, ...], store: Path, storage: str | None, json_path: Path | None) -> None:
    """Show the best configuration of PROBLEM that a study of the store found.

    A study that ended in a race comes before one that did not, and one that was measured before one that was replayed.
    """
    check_result(json_path)
    place = place_of(store, storage)
    found, unreadable = read_all(place, load_templates(own_spaces))
    worked = [result for result in found if _is_of(result, problem) and _ratio(result) is not None]
    if not worked:
        searched = alternatives(problem, sorted({str(result.info.problem) for result in found}))
        is_empty = not found and not unreadable
        told = f"there is none yet: {NONE_YET}" if is_empty else "; ".join([f"searched was {searched}", *unreadable])
        raise NoResultError(f"no study in {study_store(place).name} has a result for {problem}; {told}")
    answer = min(worked, key=lambda each: (each.race is None, each.info.provenance.replayed, _ratio(each) or 0.0))
    console = console_beside(json_path)
    print_result(answer, console)
    console.say(f"study {answer.info.name}")
    write_result(json_path, answer.to_dict())


def read_all(place: Path | str, named: Named) -> tuple[list[StudyResult], list[str]]:
    """The studies that can be read, and of the others why not."""
    store = study_store(place)
    found, unreadable = [], []
    for name in store.names():
        try:
            found.append(store.read(name, named))
        except StoreError as error:
            unreadable.append(str(error))
    return found, unreadable


def _is_of(result: StudyResult, problem: str) -> bool:
    of_study = result.info.problem
    try:
        return type(of_study).parse(problem) == of_study
    except ProblemError:  # of another kind of kernel
        return False


def _ratio(result: StudyResult) -> float | None:
    timing = result.best.measurement.timing if result.best is not None else None
    return timing.ratio if timing is not None else None


def _grid(found: Sequence[StudyResult]) -> Grid:
    grid = Grid(show_edge=False, pad_edge=False)
    grid.add_column("study", overflow="fold")
    units = [result.info.provenance.unit for result in found]
    unit = units[0] if len(set(units)) == 1 else "µs"
    listed, peers = any(result.over_library_best is not None for result in found), peers_of(found)
    others = (*["vs its\nbest"] * listed, *(f"vs\n{plain(name)}" for name in peers))
    for heading in ("trials", f"best\n{unit}", "vs\nlibrary", *others, "GPU s"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("raced")
    for result in found:
        grid.add_row(*_row(result, unit, listed, peers))
    return grid


def _row(result: StudyResult, unit: str, listed: bool, peers: Sequence[str]) -> Iterator[str]:
    """The cells of a study, whose times have their unit where it is not the heading's.

    One is of the speed over the library's best if it is `listed`, and one of that over each of the peers.
    """
    ratio, own = _ratio(result), result.info.provenance.unit
    yield result.info.name
    yield str(len(result.trials))
    yield f"{ratio * result.info.library_us:.2f}{f' {own}' if own != unit else ''}" if ratio is not None else "none"
    yield f"{1 / ratio:.3f}" if ratio is not None else ""
    if listed:
        yield f"{over.value:.3f}" if (over := result.over_library_best) is not None else ""
    for name in peers:
        yield f"{over.value:.3f}" if (over := result.over_peers.get(name)) is not None else ""
    yield f"{result.gpu_seconds:.2f}"
    yield "yes" if result.race is not None else "no"
