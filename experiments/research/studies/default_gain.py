"""Fit what the default of `gemm_sm90` is expected to gain over the library, and judge it on problems that are left out.

    python -m tilescout.experiments.research default-gain experiments/results/defaults-2026-11-22/defaults.json \
        experiments/results/defaults-2026-11-23/live.json experiments/results/defaults-2026-11-23/live-again.json \
        --out gain.json

The first file is of the study `defaults`: the speeds, in chains, of defaults that were fitted without the problem. The
others are of `default-live`: of the shipped default, in sandwiches, on problems that nothing was chosen on. A chain
flatters short kernels, so that each kind has a mean of its own; what is expected is of sandwiches. With `--write` the
file that is shipped is written.

Problems of the suite `out-of-sample` may not be among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import check_writable
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.default_live import KEPT_OUT, by_type, print_figures
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.gain import Gains, likeness, place_of, write_gains
from tilescout.spaces.suite import find_suite

DEVICE = DEVICES["h200"]
SPREAD, NOISE = 0.15, 0.1  # standard deviations, as logs: of gains over all problems, and of one beside those alike


@dataclass(frozen=True)
class Timed:
    """A problem, and the log of the speed of a default over the library's on it; in a sandwich or in a chain."""

    problem: GemmProblem
    log: float
    live: bool


def read(paths: Sequence[Path]) -> list[Timed]:
    """The problems of records of `defaults` and of `default-live`.

    Raises
    ------
    TableError
        If one of them is of the suite that nothing is chosen on.
    """
    found = []
    for path in paths:
        result = Record.read(path).result
        if "problems" in result:
            found += [
                Timed(GemmProblem.parse(one["problem"]), np.log(one["speed"]), True) for one in result["problems"]
            ]
        else:
            told = ((text, np.log(one["best"] / one["held_out"])) for text, one in result.items())
            found += [Timed(GemmProblem.parse(text), log, False) for text, log in told]
    kept_out = set(find_suite(KEPT_OUT).problems)
    if known := kept_out & {str(one.problem) for one in found}:
        raise TableError(f"{min(known)} is of the suite {KEPT_OUT}: nothing is fitted to it")
    return found


def fit(timed: Sequence[Timed], source: Mapping[str, str]) -> Gains:
    """The gains that are expected by some problems, of which some are live."""
    places = np.stack([place_of(one.problem, DEVICE) for one in timed])
    logs, live = np.array([one.log for one in timed]), np.array([one.live for one in timed])
    wide = np.array([one.problem.element.bytes > 1 for one in timed])
    means = {kind: float(logs[(live == kind) & wide].mean()) for kind in set(live.tolist())}
    rest = logs - np.array([means[kind] for kind in live.tolist()])
    covariance = SPREAD**2 * likeness(places, places) + NOISE**2 * np.eye(len(timed))
    return Gains(places, SPREAD**2 * np.linalg.solve(covariance, rest), means[True], source)


def left_out(timed: Sequence[Timed]) -> list[float]:
    """Logs of the speed that is expected of each live problem by those of other shapes."""

    def shape(one: Timed) -> tuple[int, int, int]:
        return one.problem.m, one.problem.n, one.problem.k

    return [
        fit([other for other in timed if shape(other) != shape(one)], {}).expected(one.problem, DEVICE)
        for one in timed
        if one.live
    ]


@study("records of the studies `defaults` and `default-live`")
@click.argument("records", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--write", type=click.Path(path_type=Path), help="Fit to all problems, and write the gains there.")
def main(run: Run, records: tuple[Path, ...], write: Path | None) -> None:
    """Print what running the default only where it is expected to gain brings, on live problems that are left out."""
    if write is not None:
        check_writable(write)
    timed = read(records)
    live = [one for one in timed if one.live]
    expected = np.array(left_out(timed))
    speeds = np.exp([one.log for one in live])
    texts = [str(one.problem) for one in live]
    told: dict[str, Any] = by_type(texts, speeds, expected)
    print_figures(told)
    if write is not None:
        write_gains(write, fit(timed, {path.name: sha256(path.read_bytes()).hexdigest() for path in records}))
    listed = zip(texts, speeds.tolist(), expected.tolist(), strict=True)
    run.keep({"figures": told, "problems": [{"problem": a, "speed": b, "expected": c} for a, b, c in listed]})
