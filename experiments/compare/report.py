"""A comparison on the terminal, on disk and in MLflow."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD

from tilescout.experiments.compare.plots import draw_convergence, draw_scores
from tilescout.experiments.compare.result import SCORES, Comparison, Standing
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import StoreError
from tilescout.spaces.outputs import check_replaceable, has_keys, is_matplotlib, write_whole
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of

EXPERIMENT = "tilescout/compare"
SEARCHES = "runs.jsonl"
"""The file of the searches, in the folder of a comparison."""

_CAPTION = (
    "score: 0 is random search, 1 the best at once; 95 %: over problems; by GPU s: over GPU time; to 5 %, to 1 %: "
    "trials until within; found: share of the searches within 1 %; ms: to propose a trial"
)
_ANSWERS_HEAD = (
    *("regret", "p90", "×\nlibrary", "× its\nbest", "<\ndefault"),
    *("flips", "kernels", "GPU\ns", "compile\ns", "own\ns"),
)
_ANSWERS_CAPTION = (
    "regret: how much slower than the best, mean and 90th percentile; × library, × its best: speed over the library's "
    "function and over its fastest candidate, geometric means over the problems where these were recorded; "
    "< default: share of answers slower than it; flips: share of pairs of seeds whose answers are more than 1 % apart; "
    "then means a search"
)
_SCORES_OF = ("contender", "problem")
_TESTS_OF = ("first", "second", "difference", "wins", "pairs", "unit", "p", "p_corrected")


def _begins_with(columns: Sequence[str]) -> Callable[[Path], bool]:
    return lambda path: path.read_bytes().startswith(",".join(columns).encode())


# The files of a comparison, and how one is told from somebody else's.
_FILES: Mapping[str, Callable[[Path], bool]] = {
    "comparison.json": lambda path: has_keys(path, ("trials", "seeds", "contenders", "paired_tests")),
    "scores.csv": _begins_with(_SCORES_OF),
    "tests.csv": _begins_with(_TESTS_OF),
    "convergence.png": is_matplotlib,
    "scores.png": is_matplotlib,
}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The strategies by score, what each needed, and which differences are proven."""
    grid = Grid(
        title=f"{comparison.asked}; pairs are the median and the 90th percentile of the searches",
        caption=_CAPTION,
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    grid.add_column("strategy", no_wrap=True)
    for heading in ("score", "95 %", "by\nGPU s", "to 5 %", "to 1 %", "GPU s\nto 1 %", "found", "ms"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for standing in comparison.standings:
        grid.add_row(standing.name, *_cells(standing))
    console.print(grid)
    console.print(_answers_grid(comparison))
    for standing in comparison.standings:
        for failure in standing.failed[:3]:
            console.say(f"{standing.name} failed on {failure}")
        if len(standing.failed) > 3:
            console.print(f"{standing.name} failed {len(standing.failed)} times in all", highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    if versions:
        console.print(f"versions: {versions}", highlight=False, soft_wrap=True)
    if comparison.peers:
        console.say(comparison.peers)
    for warning in comparison.warnings:
        console.say(warning)
    if found := verdict(comparison):
        console.say(found)


def _answers_grid(comparison: Comparison) -> Grid:
    """The answers that the strategies hand out, and what they cost."""
    grid = Grid(
        title="the answers", caption=_ANSWERS_CAPTION, box=SIMPLE_HEAD, title_justify="left", caption_justify="left"
    )
    grid.add_column("strategy", no_wrap=True)
    for heading in _ANSWERS_HEAD:
        grid.add_column(heading, justify="right", no_wrap=True)
    for standing in comparison.standings:
        if standing.runs:
            grid.add_row(standing.name, *_answers(standing))
    return grid


def _answers(standing: Standing) -> tuple[str, ...]:
    told = standing.answers
    if not told:
        return ("-",) * len(_ANSWERS_HEAD)
    regrets, speeds = (told["regret"], told["regret_p90"]), (told["over_library"], told["over_library_best"])
    shares = (told["slower_than_default"], told["flips"])
    means = (told["kernels"], told["gpu_seconds"], told["compile_seconds"], told["own_seconds"])
    figures = ((regrets, ".1%"), (speeds, ".3f"), (shares, ".1%"), (means, ".3g"))
    return tuple(_figure(value, how) for values, how in figures for value in values)


def verdict(comparison: Comparison) -> str:
    """Which strategy is best, and of which others that is proven, in a sentence; empty where there is nothing to tell.

    That is of a single one, and where nothing could be gained.
    """
    best, *others = [standing.name for standing in comparison.standings]
    if not others or not math.isfinite(comparison.standings[0].scores["score"][0]):
        return ""
    # The highest mean may be due to one problem, while another strategy is the better one on nearly all.
    beaten = {t.second for t in comparison.tests if t.first == best and t.difference > 0 and t.p_corrected < 0.05}
    close = [name for name in others if name not in beaten]
    proven = "every other" if not close else f"all but {', '.join(close)}"
    pairs = next((t for t in comparison.tests if t.first == best), None)
    how = ""
    if pairs is not None:
        over = number_of(pairs.pairs, pairs.unit) + (" of different shape" if pairs.unit == "problem" else "")
        how = f" (Wilcoxon's test over {over}, Holm's correction)"
    told = f"{best} scored higher than {proven}"
    if len(close) == len(others):
        told = f"{best} has the highest score, and is proven to be better than no other"
    return f"{told} at the 5 % level{how}"


def check_comparison_files(folder: Path) -> None:
    """Refuse a folder that has files of somebody else's under the names that `write_comparison` writes.

    Raises
    ------
    StoreError
        If one is not of a comparison.
    """
    for name, is_one in _FILES.items():
        check_replaceable(folder / name, "of a comparison", is_one, StoreError)


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write ``comparison.json``, ``scores.csv``, ``tests.csv`` and two plots into an existing folder."""
    write_whole(folder / "comparison.json", (json.dumps(comparison.to_dict(), indent=1) + "\n").encode())
    scores = (
        [standing.name, case, *found.values()]
        for standing in comparison.standings
        for case, found in standing.by_case.items()
    )
    write_whole(folder / "scores.csv", _csv([*_SCORES_OF, *SCORES], scores))
    write_whole(folder / "tests.csv", _csv(_TESTS_OF, (list(vars(test).values()) for test in comparison.tests)))
    draw_convergence(comparison, folder / "convergence.png")
    draw_scores(comparison, folder / "scores.png")


def _csv(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(heading)
    writer.writerows(rows)
    return text.getvalue().encode(errors="backslashreplace")  # a file's name may be no text


def log_comparison(
    comparison: Comparison, folder: Path, about: Mapping[str, str], uri: str, artifacts: Path | None
) -> str:
    """Log a comparison to MLflow: a parent run with the files of `folder`, a nested run a strategy with its curve.

    Returns
    -------
    str
        The page of the parent run in MLflow's UI, relative to the address of the server.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    from tilescout.search.tracking import Logged, log_run
    from tilescout.search.tracking.fields import PARENT_TAG
    from tilescout.search.tracking.mlflow_hooks import View
    from tilescout.search.tracking.store import opened_experiment

    speeds = ("answers/over_library", "answers/over_library_best")
    view = View(("score", "score_gpu_seconds", "within_1_percent/share", *speeds), ("samplers", "trials", "seeds"))
    with opened_experiment(uri, EXPERIMENT, artifacts, view) as (client, experiment):
        parent = client.create_run(experiment, run_name=about["name"])
        metrics = {f"score/{standing.name}": standing.scores["score"][0] for standing in comparison.standings}
        files = [folder / name for name in (SEARCHES, *_FILES)]  # not whatever else the folder holds
        tables = [Table.read(Path(path)).dataset for path in comparison.tables]
        log_run(client, parent.info.run_id, about, metrics, files, describe(comparison), tables)
        for standing in comparison.standings:
            child = client.create_run(experiment, run_name=standing.name, tags={PARENT_TAG: parent.info.run_id})
            _log_standing(client, child.info.run_id, standing)
            client.set_terminated(child.info.run_id, "FINISHED" if standing.runs else "FAILED")
        client.set_terminated(parent.info.run_id)
    return Logged(parent.info.run_id, experiment).page


def describe(comparison: Comparison) -> str:
    """A comparison in Markdown: the verdict, the strategies by score, and what the figures can't say."""
    from tilescout.search.tracking import as_code, as_text, markdown_table

    head = ("strategy", "score", "95 %", "by GPU s", "to 5 %", "to 1 %", "GPU s to 1 %", "found", "ms")
    rows = [(as_code(standing.name), *_cells(standing)) for standing in comparison.standings]
    answers = [(as_code(standing.name), *_answers(standing)) for standing in comparison.standings if standing.runs]
    told = markdown_table(("strategy", *(name.replace("\n", " ") for name in _ANSWERS_HEAD)), answers)
    parts = [
        f"**{as_text(verdict(comparison))}**" if verdict(comparison) else "",
        comparison.asked,
        markdown_table(head, rows),
        _CAPTION,
    ]
    parts += [told, _ANSWERS_CAPTION, comparison.peers]
    return "\n\n".join(part for part in (*parts, *map(as_text, comparison.warnings)) if part)


def _log_standing(client: Any, run_id: str, standing: Standing) -> None:
    import math
    import time

    from mlflow.entities import Metric, Param

    stamp = round(time.time() * 1000)
    metrics = {name: values[0] for name, values in standing.scores.items()}
    metrics |= {f"{name}_low": values[1] for name, values in standing.scores.items()}
    metrics |= {f"{name}_high": values[2] for name, values in standing.scores.items()}
    for end, at in (("low", 0), ("high", 1)):
        metrics |= {f"{name}_seeds_{end}": values[at] for name, values in standing.over_seeds.items()}
    for tolerance, figures in standing.within.items():
        metrics |= {f"within_{tolerance.rstrip('%')}_percent/{name}": value for name, value in figures.items()}
    metrics |= {f"answers/{name}": value for name, value in standing.answers.items()}
    known = [Metric(name, value, stamp, 0) for name, value in metrics.items() if math.isfinite(value)]
    steps = range(1, standing.curve.shape[1] + 1)
    curve = [
        Metric("time_over_best", float(value), stamp, step)
        for step, value in zip(steps, standing.curve[0], strict=True)
        if math.isfinite(value)
    ]
    client.log_batch(run_id, known, [Param("contender", standing.name)])
    for start in range(0, len(curve), 1000):  # MLflow's limit of metrics a batch
        client.log_batch(run_id, curve[start : start + 1000])


def _cells(standing: Standing) -> tuple[str, ...]:
    if not standing.runs:
        return ("failed",) + ("",) * 7
    score, low, high = standing.scores["score"]
    close, closest = standing.within["5%"], standing.within["1%"]
    return (
        _figure(score, ".3f"),
        f"{_figure(low, '.3f')} to {_figure(high, '.3f')}" if math.isfinite(low) else "-",
        _figure(standing.scores["score_gpu_seconds"][0], ".3f"),
        _pair(close, "trials", ".0f"),
        _pair(closest, "trials", ".0f"),
        _pair(closest, "gpu_seconds", ".3g"),
        f"{closest['share']:.0%}",
        f"{standing.seconds_per_trial * 1e3:.1f}",
    )


def _pair(figures: Mapping[str, float], name: str, form: str) -> str:
    """Median and 90th percentile."""
    return f"{_figure(figures[f'{name}_median'], form)}, {_figure(figures[f'{name}_p90'], form)}"


def _figure(value: float, form: str) -> str:
    return f"{value:{form}}" if abs(value) < float("inf") else "-"
