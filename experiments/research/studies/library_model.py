"""Learn a cost model of cuBLASLt's algorithms from times of a screening, and say how good it is on other problems.

    python -m tilescout.experiments.research library-model TIMES --model cublaslt-h200.npz

TIMES are folders that `library-screen` wrote, a file a problem. The model learns from a random part of each
problem's rows and from its fastest. It is judged on problems that it did not learn from: of all rows that were screened
of such a problem, the first guesses of the library's heuristic are tried, then those that the model expects to be the
fastest. The regret after some trials is how much slower the fastest of these is than the fastest of all, by the times
of the screening, which tell within some per cent where a kernel takes longer than the host needs to launch it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features, space_features
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.persistence import ModelCard, TrainingTable, save_model
from tilescout.experiments.commands.options import Finite, seed_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.screening import Screened
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

SPACE = "cublaslt"
FASTEST = 400  # rows that are learned from whatever the draw: what is fast must be told apart
GUESSES = 8
TRIALS = (8, 12, 16, 24, 40)


@dataclass(frozen=True)
class Ordered:
    """The times of one problem.

    Attributes
    ----------
    problem
        The problem.
    features
        Of the rows, in the order of their times.
    us
        Their times in µs, rising.
    guess
        The rank of each in the heuristic's list, 0 if it is not there.
    """

    problem: GemmProblem
    features: Features
    us: NDArray[np.float64]
    guess: NDArray[np.int64]

    @classmethod
    def read(cls, path: Path, device: str) -> "Ordered":
        """Read a file of a screening.

        Raises
        ------
        ModelError
            If it can't be read.
        """
        found, template = Screened.read(path), find_template(SPACE)
        problem, rows, us = found.problem, found.rows.astype(np.int64), found.us
        order = np.argsort(us, kind="stable")[: int(np.isfinite(us).sum())]
        codes = SearchSpace.codes_of(template.knobs, rows[order].tolist())
        space = template.space_of(codes, problem, find_device(device))
        if space is None:
            raise ModelError(f"{path} holds no times")
        # The space sorts its rows.
        back = np.array([space.index(dict(zip(space.columns, row, strict=True))) for row in rows[order].tolist()])
        return cls(problem, space_features(space, template).take(back), us[order], rows[order, 0])

    def sample(self, most: int, generator: np.random.Generator) -> Sample:
        """The fastest and a random part of the rows."""
        count = len(self.us)
        drawn = generator.choice(count, min(most, count), replace=False)
        chosen = np.unique(np.concatenate([np.arange(min(FASTEST, count)), drawn]))
        return Sample(
            problem=str(self.problem),
            features=self.features.take(chosen),
            log_time=np.log(self.us[chosen]),
            censored=np.zeros(len(chosen), dtype=np.bool_),
            family=self.problem.family,
        )

    def regrets(self, expected: NDArray[np.float64]) -> list[float]:
        """How much slower the fastest of the first trials is than the fastest of all, for each of `TRIALS`."""
        first = np.flatnonzero((self.guess > 0) & (self.guess <= GUESSES))
        first = first[np.argsort(self.guess[first])]
        others = np.setdiff1d(np.argsort(expected, kind="stable"), first, assume_unique=True)
        ranked = [*first.tolist(), *others[np.argsort(expected[others], kind="stable")].tolist()]
        return [float(self.us[ranked[:trials]].min() / self.us[0] - 1) for trials in TRIALS]


def judged(
    screened: Sequence[Ordered], samples: Sequence[Sample], options: ForestOptions, folds: int, least: float
) -> dict[str, list[float]]:
    """The regrets on each problem whose best takes `least` µs, by a model that learned from none of its fold."""
    found = {}
    for fold in range(folds):
        out = set(range(fold, len(screened), folds))
        model = ForestModel(options)
        learned = model.grow([sample for at, sample in enumerate(samples) if at not in out])
        for at in (at for at in sorted(out) if screened[at].us[0] >= least):
            found[str(screened[at].problem)] = screened[at].regrets(learned.predict(screened[at].features)[0])
    return found


times_argument = click.argument(
    "times", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)


def files_in(times: Sequence[Path]) -> list[Path]:
    """The files of screenings in folders, a problem each."""
    return [file for folder in times for file in sorted(folder.glob("*.npz"))]


@study("files that library-screen wrote")
@times_argument
@click.option("--device", default="h200", show_default=True, help="The device that they were taken on.")
@click.option("--most", type=click.IntRange(min=1), default=1500, show_default=True, help="Random rows of a problem.")
@click.option("--trees", type=click.IntRange(min=1), default=16, show_default=True, help="Of the forest.")
@click.option("--leaf", type=click.IntRange(min=1), default=4, show_default=True, help="Fewest rows of a leaf.")
@click.option(
    "--folds", type=click.IntRange(min=2), default=6, show_default=True, help="Parts; a forest learns from all but one."
)
@click.option(
    "--least", type=Finite(min=0), default=0.0, show_default=True, help="Judge on problems whose best takes so many µs."
)
@click.option("--model", "path", type=click.Path(path_type=Path), help="Write the model of all problems here.")
@seed_option
def main(
    run: Run,
    times: tuple[Path, ...],
    device: str,
    most: int,
    trees: int,
    leaf: int,
    folds: int,
    least: float,
    path: Path | None,
    seed: int,
) -> None:
    """Learn from the times in TIMES, and judge the model on problems that it did not learn from."""
    console = Console(width=160)
    files = files_in(times)
    screened = [Ordered.read(file, device) for file in files]
    samples = [one.sample(most, np.random.default_rng([seed, at])) for at, one in enumerate(screened)]
    options = ForestOptions(trees=trees, leaf=leaf, seed=seed)
    found = judged(screened, samples, options, folds, least)
    for text, regrets in found.items():
        console.print(f"{text}: " + ", ".join(f"{each:.1%}" for each in regrets), highlight=False)
    table = np.array(list(found.values()))
    for at, trials in enumerate(TRIALS):
        here = table[:, at]
        console.print(
            f"after {trials} trials: median {np.median(here):.2%}, 90th percentile {np.quantile(here, 0.9):.2%}, "
            f"within 1 % on {(here <= 0.01).sum()} and within 3 % on {(here <= 0.03).sum()} of {len(here)}",
            highlight=False,
        )
    summary = {
        str(trials): {
            "median": float(np.median(here)),
            "90th percentile": float(np.quantile(here, 0.9)),
            "within 1 %": int((here <= 0.01).sum()),
        }
        for trials, here in zip(TRIALS, table.T, strict=True)
    }
    learned = {"problems": len(found), "screened": sum(len(one.us) for one in screened)}
    run.keep({**learned, "trials": TRIALS, "after": summary, "regrets": found})
    if path is not None:
        model = ForestModel(options)
        model.fit(samples)
        sources = tuple(TrainingTable(folder.name, _sum_of(folder), "chain") for folder in times)
        problems = tuple(str(one.problem) for one in screened)
        save_model(path, model, ModelCard(SPACE, device, problems, sources, sum(map(len, samples))))
        console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", highlight=False)


def _sum_of(folder: Path) -> str:
    """A checksum of all files of a folder."""
    return sha256(b"".join(sha256(file.read_bytes()).digest() for file in files_in([folder]))).hexdigest()
