"""The leaderboard: strategies x recorded spaces, as a page.

Plays strategies on tables, which are the recorded spaces, and adds their standings to those of an earlier file
(--again). What that has already is not played again. Without samplers the page alone is written anew. Searches are kept
in a folder (--searches), so that what was interrupted goes on.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.options import processes_option, typed_samplers
from tilescout.experiments.compare.api import compare
from tilescout.experiments.compare.result import Comparison, Standing
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import PROGRAM, TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import StoreError, TilescoutError
from tilescout.spaces.outputs import check_replaceable, write_whole
from tilescout.spaces.texts import plain

TRIALS, SEEDS = 200, 3
DATA = Path("experiments/results/leaderboard-2026-11-22.json")
"""Where the data of the page lie in the repository."""

PAGE = Path(__file__).parent.parent / "leaderboard_page.txt"
"""The page, with names in braces where figures go."""

ORIGIN = (
    "The first is shipped with tilescout. The others are recordings of other people's kernels, by Kernel Tuner and "
    "KTT, from the Autotuning\nAssociation's benchmark hub (commit 8eeb99e); they are not part of this repository. "
    "This makes tables of them:\n\n"
    "```sh\n"
    "tilescout tables import cachefiles/convolution_milo/A4000.json.gz convolution-A4000.parquet\n"
    "tilescout tables import cachefiles/convolution_milo/MI250X.json.gz convolution-MI250X.parquet --device MI250X\n"
    "tilescout tables import cachefiles/dedispersion_milo/W7800_T4.json.gz dedispersion-W7800.parquet "
    "--kernel dedispersion --device W7800 --problem 25000x2048x1\n"
    "cd 'currently_unused/cachefiles/KTT data'\n"
    "tilescout tables import KTPnpolyOutput_2080Ti.json.gz pnpoly-RTX2080Ti.parquet --problem 20000000\n"
    "tilescout tables import KTConvolutionOutput_2080Ti.json.gz ktt-convolution-RTX2080Ti.parquet --problem 4096x4096\n"
    "```"
)
"""Whence the spaces of `DATA` are. The page of other data says nothing of it."""


def standing_of(standing: Standing, problems: int) -> dict[str, Any]:
    """A strategy: its score, with an interval over problems or over seeds of one, and its answers."""
    if not standing.runs or standing.failed:
        raise StoreError(f"{standing.name} failed: {plain((*standing.failed, 'it has no searches')[0])}")
    mean, low, high = standing.scores["score"]
    ends = (low, high) if problems > 1 else standing.over_seeds["score"]
    finite: list[float | None] = [value if abs(value) < float("inf") else None for value in (mean, *ends)]
    return {
        "score": finite,
        "found": standing.within["1%"]["share"],
        **{name: value for name, value in standing.answers.items() if abs(value) < float("inf")},
    }


def spaces_of(tables: Sequence[Path]) -> dict[str, Any]:
    """The recorded spaces, by the names of their files: of which kernel, on which device, which rows."""
    found = {}
    for path in tables:
        card = Table.read_card(path)
        found[path.stem] = {
            "kernel": card.space,
            "device": card.product,
            "problems": len(card.baselines),
            "rows": card.rows,
            "sha256": card.sha256,
        }
    return found


def played(found: Comparison, spaces: Mapping[str, Comparison]) -> dict[str, Any]:
    """The entries of strategies, from the comparisons on all spaces and on each."""
    entries: dict[str, Any] = {}
    for standing in found.standings:
        entry: dict[str, Any] = {"all": standing_of(standing, len(found.cases)), "spaces": {}}
        for name, one in spaces.items():
            (own,) = (each for each in one.standings if each.name == standing.name)
            entry["spaces"][name] = standing_of(own, len(one.cases))
        entries[standing.name] = entry | {"versions": dict(found.versions), "date": str(datetime.now(UTC).date())}
    return entries


def page(record: Record, data: Path) -> str:
    """The leaderboard in Markdown, of the record in the file `data`, which lies beside the page."""
    result, about = record.result, record.about
    spaces, entries = result["spaces"], result["strategies"]
    ranked = sorted(entries, key=lambda name: -(entries[name]["all"]["score"][0] or 0.0))
    leaders = [f"`{name}`" for name in ranked[:3]]
    lines = [
        "| space | kernel | recorded on | problems | configurations a problem |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for name, each in spaces.items():
        count = each["rows"] / each["problems"]
        lines.append(f"| {name} | {each['kernel']} | {each['device']} | {each['problems']} | {count:,.0f} |")
    scores = ["| strategy | all | " + " | ".join(spaces) + " |", "| --- | --- |" + " --- |" * len(spaces)]
    answers = [
        "| strategy | found within 1 % | regret | slower than the default | flips | kernels compiled | GPU s | own s |",
        "| --- |" + " ---: |" * 7,
    ]
    for name in ranked:
        own = entries[name]
        cells = [_score(own["all"]), *(_score(own["spaces"].get(space)) for space in spaces)]
        scores.append(f"| `{name}` | {' | '.join(cells)} |")
        told = own["all"]
        shares = [_share(told.get(key)) for key in ("found", "regret", "slower_than_default", "flips")]
        costs = [f"{told[key]:.3g}" for key in ("kernels", "gpu_seconds", "own_seconds")]
        answers.append(f"| `{name}` | {' | '.join(shares + costs)} |")
    versions: dict[str, str] = {}
    for entry in entries.values():
        versions |= entry["versions"]
    return PAGE.read_text().format(
        date=about["date"][:10],
        machine=f"{about['machine']['cores']} cores",
        command=about["command"],
        again=f"{PROGRAM} leaderboard --again {data} --page {data.parent / 'leaderboard.md'}",
        data=data.name,
        origin=ORIGIN if data == DATA else "`tilescout tables` says more of each recording.",
        leaders=" and ".join(filter(None, (", ".join(leaders[:-1]), leaders[-1]))),
        trials=result["trials"],
        seeds=result["seeds"],
        spaces="\n".join(lines),
        scores="\n".join(scores),
        answers="\n".join(answers),
        versions=", ".join(f"{name} {number}" for name, number in sorted(versions.items())),
    )


def is_page(path: Path) -> bool:
    """Whether a file is a leaderboard that was written before."""
    return path.read_text().partition("\n")[0] == PAGE.read_text().partition("\n")[0]


def _facts(spaces: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The facts of spaces, but for the bytes of their tables."""
    return {name: {key: fact for key, fact in each.items() if key != "sha256"} for name, each in spaces.items()}


def _score(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "–"
    mean, low, high = entry["score"]
    if mean is None:  # nothing can be gained there
        return "–"
    return f"{mean:.2f}" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")


@study(TABLES, again=True)
@click.option("--table", "tables", multiple=True, type=TABLE, help="A recorded space; repeatable.")
@click.option("--samplers", callback=typed_samplers, default="", metavar="A,B,...", help="As of `tilescout compare`.")
@click.option("--trials", type=click.IntRange(min=1), default=TRIALS, show_default=True, help="Trials a search.")
@click.option("--seeds", type=click.IntRange(min=1), default=SEEDS, show_default=True, help="Searches a problem.")
@processes_option
@click.option("--searches", type=click.Path(path_type=Path, file_okay=False), help="Keep searches here, and go on.")
@click.option("--page", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write the page there.")
def main(
    run: Run,
    tables: tuple[Path, ...],
    samplers: str,
    trials: int,
    seeds: int,
    processes: int | None,
    searches: Path | None,
    target: Path | None,
) -> None:
    """Play strategies on tables, and write the leaderboard."""
    if target is not None:
        check_replaceable(target, "a leaderboard", is_page, StoreError)
    budget = {"trials": trials, "seeds": seeds}
    earlier: dict[str, Any] = run.record.result if run.record is not None else {}
    result = {**budget, "spaces": {}, "strategies": {}, **earlier}
    wanted = [name for name in samplers.split(",") if name and name not in result["strategies"]]
    if wanted:
        spaces = spaces_of(tables)
        if earlier:
            if (_facts(spaces), budget) != (_facts(result["spaces"]), {key: result[key] for key in budget}):
                raise TilescoutError(
                    f"the earlier file has {result['trials']} trials, {result['seeds']} seeds and the tables "
                    f"{', '.join(result['spaces'])}: play on the very same"
                )
            # Another version imports the same results into other bytes.
            if other := [name for name in spaces if spaces[name]["sha256"] != result["spaces"][name]["sha256"]]:
                click.echo(f"other bytes than those that the others were played on: {', '.join(other)}", err=True)
            spaces = result["spaces"]
        with ExitStack() as stack:
            kept = searches or stack.enter_context(TemporaryDirectory(prefix="tilescout-"))
            play = partial(compare, wanted, processes=processes, out=kept, resume=True, trials=trials, seeds=seeds)
            whole = play(tables=tables)
            each = {path.stem: play(tables=[path]) for path in tables}  # of the searches that are kept
        result = {**result, "spaces": spaces, "strategies": {**result["strategies"], **played(whole, each)}}
        run.keep(result)
    elif run.record is None:
        raise click.UsageError("name --samplers and tables, or a file with --again")
    assert run.record is not None
    text = page(run.record, run.out or run.again or DATA)
    if target is not None:
        write_whole(target, text.encode())
    else:
        click.echo(text)
