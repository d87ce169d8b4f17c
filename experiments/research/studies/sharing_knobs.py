r"""Measure what the knobs that ``gemm_streamk_sm90`` has beside those of ``gemm_sm90`` are worth on a suite.

    python -m tilescout.experiments.research sharing-knobs draw --suite out-of-sample --out kernels.json
    python -m tilescout.experiments.research sharing-knobs glance --kernels kernels.json --out knobs.json

``draw`` names for each problem, by the shipped cost model alone, the kernels that are expected to be the fastest of
each kind: those that share nothing, with tiles in steps of 16 columns (``plain``), and those that share by parts
(``split``), that share the last wave (``stream_k``), have a tile of an odd multiple of 8 columns (``fine``) or are
launched two by two (``pairs``, tiles of any columns). ``glance`` times all of them beside the library, in chains, and
then the fastest of each kind again, for the fastest of several is a little lucky. A knob is worth having on a problem
if its best is faster by more than 1 % than the best of all other kinds: without the knob, that would be the answer.
Nothing is verified, and nothing is chosen.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import Finite, store_option, suite_problems
from tilescout.experiments.research.glances import Glances, Kernel
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.experiments.research.studies.knob_worth import ENOUGH
from tilescout.search.dispatch.measuring import SWEEPING
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.constraints import Columns, Mask
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_streamk_sm90.layout import STEP
from tilescout.spaces.gemm_streamk_sm90.rules import TWO_BY_TWO
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

SHARING = "gemm_streamk_sm90"
PLAIN = "plain"
ROUNDS, ROUNDS_AGAIN = 3, 12


def kinds_of(columns: Columns) -> dict[str, Mask]:
    """Which of some configurations are of each kind."""
    split, evenly = columns["split"] > 1, columns["stream_k"] == 1
    fine, pairs = columns["tile_n"] % (2 * STEP) > 0, columns["raster"] == TWO_BY_TWO
    whole = ~split & ~evenly & ~pairs
    return {PLAIN: whole & ~fine, "split": split, "stream_k": evenly, "fine": whole & fine, "pairs": pairs}


def draw(problems: Sequence[GemmProblem], first: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Of each problem and kind, the kernels that the shipped model ranks first.

    The problems are put in a random order: those that a glance has no time for are then of no sort in particular.
    """
    template, path = find_template(SHARING), shipped_model(SHARING, "h200")
    assert path is not None
    model, _ = load_model(path)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for at in np.random.default_rng(0).permutation(len(problems)):
        problem = problems[at]
        space = template.space(problem, DEVICES["h200"])
        expected = model.predict(space_features(space, template)).mean
        found[str(problem)] = {
            kind: [dict(space[int(each)]) for each in those[np.argsort(expected[those])[:first]]]
            for kind, those in ((kind, np.flatnonzero(mask)) for kind, mask in kinds_of(space.columns).items())
        }
    return found


Drawn = Mapping[GemmProblem, Mapping[str, Sequence[Configuration]]]
"""The kernels of each problem and kind."""


def drawn_in(record: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> Drawn:
    """The kernels that `draw` named."""
    return {
        GemmProblem.parse(text): {kind: [Configuration.of(each) for each in some] for kind, some in kinds.items()}
        for text, kinds in record.items()
    }


def fastest_at(problem: GemmProblem, kinds: Mapping[str, Sequence[Configuration]], glances: Glances) -> dict[str, Any]:
    """The ratio of time over the library's of the fastest kernel of each kind, and which it is.

    Raises
    ------
    CannotMeasureError
        If one of the kernels took the measuring process down.
    """
    kind_of = {(0, each): kind for kind, some in kinds.items() for each in some}
    library_us, times = glances.at(problem, list(kind_of), ROUNDS, 0)
    medians = {kernel: float(np.median(ratios)) for kernel, ratios in times.items()}
    best: dict[str, Kernel] = {}
    for kernel in sorted(medians, key=lambda each: medians[each]):
        best.setdefault(kind_of[kernel], kernel)
    _, again = glances.at(problem, list(best.values()), ROUNDS_AGAIN, 0)
    return {
        "library_us": library_us,
        "kinds": {
            kind: {
                "configuration": dict(kernel[1]),
                "first": medians[kernel],
                "ratios": [round(each, 4) for each in again[kernel]],
            }
            for kind, kernel in best.items()
        },
    }


def worth(kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """How much faster the best of each kind is than the best plain kernel, and than the best of all other kinds.

    Both are ratios of speeds, less 1. Where no plain kernel was timed, nothing is told.
    """
    medians = {kind: float(np.median(one["ratios"])) for kind, one in kinds.items()}
    if PLAIN not in medians:
        return {}
    others = {kind: min(medians[other] for other in medians if other != kind) for kind in medians if kind != PLAIN}
    return {kind: (medians[PLAIN] / medians[kind] - 1, other / medians[kind] - 1) for kind, other in others.items()}


def print_worth(console: Console, problems: Mapping[str, Mapping[str, Any]]) -> None:
    """Print on how many problems each kind is worth more than 1 %, and the most that it is worth."""
    found = {text: worth(record["kinds"]) for text, record in problems.items() if "kinds" in record}
    grid = Grid(title=f"{len(found)} problems; the best of a kind over the best plain kernel", title_justify="left")
    headings = "problems that have it", "faster by more than 1 %", "than all others", "most", "where", "mean"
    for heading in ("kind", *headings):
        grid.add_column(heading)
    for kind in sorted({kind for each in found.values() for kind in each}):
        gains = {text: each[kind] for text, each in found.items() if kind in each}
        over_plain, over_all = np.array(list(gains.values())).T
        most = max(gains, key=lambda text: gains[text])
        earning = [str((over > ENOUGH).sum()) for over in (over_plain, over_all)]
        mean = np.exp(np.log1p(over_plain).mean()) - 1
        grid.add_row(kind, str(len(gains)), *earning, f"{gains[most][0]:.1%}", most, f"{mean:.1%}")
    console.print(grid)


@study("a Hopper GPU to glance, nothing but a cost model to draw", out_required=True)
@click.argument("part", type=click.Choice(["draw", "glance"]))
@click.option("--suite", default="out-of-sample", show_default=True, help="Problems to draw for: NAME or FILE.toml.")
@click.option("--first", default=4, show_default=True, type=click.IntRange(min=1), help="Kernels of each kind to draw.")
@click.option("--kernels", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="What ``draw`` wrote.")
@click.option("--seconds", type=Finite(min=0), default=300.0, show_default=True, help="Begin no problem after that.")
@device_option
@store_option
def main(
    run: Run, part: str, suite: str, first: int, kernels: Path | None, seconds: float, device: str, store: Path
) -> None:
    """Draw kernels, or glance at them; see the module."""
    template = find_template(SHARING)
    if part == "draw":
        listed = [problem for problem in suite_problems(template, suite, None) if isinstance(problem, GemmProblem)]
        run.keep(draw(listed, first))
        return
    if kernels is None:
        raise click.UsageError("glance needs the kernels: give --kernels")
    found: dict[str, Any] = {}
    started = time.monotonic()
    with LocalEngine(template, artifacts(store), [device], options=SWEEPING) as engine:
        drawn, glances = drawn_in(Record.read(kernels).result), Glances([engine])
        for problem, kinds in drawn.items():
            glances.compile(((0, each) for some in kinds.values() for each in some), problem.signature)
        report = {"device": engine.product, "versions": dict(engine.versions), "problems": found}
        for problem, kinds in drawn.items():
            if time.monotonic() - started > seconds:
                break
            try:
                found[str(problem)] = fastest_at(problem, kinds, glances)
            except TilescoutError as error:
                found[str(problem)] = {"error": one_line(error)}
            run.keep(report)
    print_worth(Console(width=120), found)
