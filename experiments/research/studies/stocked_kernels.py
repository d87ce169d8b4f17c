r"""Choose the kernels that are worth having in a store before problems are tuned, of spaces that are searched together.

    python -m tilescout.experiments.research stocked-kernels TABLE.parquet … --write stocks/ --out chosen.json

Kernels are chosen one after the other, each the one that lowers the mean regret the most: half of it is over the
problems of the tables, by the times that were recorded, and half over random problems, by the shipped models. A regret
is over the fastest kernel of all spaces. So that a space may be told by how fast the other's kernels are, the problems
of the tables are those that were recorded in all of them. The kernels that a default is taken from in the first space
are there anyway: a search begins with the default.

Candidates are the kernels of the tables that are near the best of a problem, and on each random problem those that the
models expect to be the fastest. Configurations that differ in their launch alone are one kernel. Two things say what
such kernels are worth on problems that they were not chosen on: as many that are chosen on the tables alone, a fifth of
the products left out at a time; and these on further random problems, by the models. Tables of several types give a
list each.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.portfolio import choose_portfolio
from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.commands.outputs import check_writable
from tilescout.experiments.commands.portfolio import Codes, Regrets, left_out, recorded_logs
from tilescout.experiments.research.defaults_fit import drawn_problems
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.launched import codes_known, kernels_of
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.space import Indices
from tilescout.spaces.templates import KernelTemplate, find_template

NEAR = 0.1
"""Log of the time over the best of a recorded problem, within which a kernel is a candidate."""

EACH = 10
"""Candidates that come of a random problem, of each space."""

FAR = 0.3
"""Log of the time over the best of a random problem, from which on a kernel counts as one that does not serve it."""

FRESH = 200
"""Random problems that say what the chosen kernels are worth."""

FOLDS = 5
DEVICE = find_device("h200")

Kernel = tuple[int, ...]
"""The number of its space, and the codes of its knobs as they are compiled."""


@dataclass(frozen=True)
class Source:
    """A space that kernels are chosen of: its template, the model that is shipped, and tables."""

    template: KernelTemplate
    model: CostModel
    tables: tuple[Table, ...]

    @classmethod
    def of(cls, name: str, tables: Iterable[Table]) -> "Source":
        """The space of this name, with those of the tables that are of it."""
        path = shipped_model(name, DEVICE.name)
        if path is None:
            raise click.UsageError(f"no model of {name} is shipped, which random problems are predicted by")
        return cls(find_template(name), load_model(path)[0], tuple(each for each in tables if each.card.space == name))

    def numbers_of(self, codes: Any) -> Indices:
        """The number of the kernel that each of some configurations is compiled as; they are given as codes."""
        return kernels_of(self.template.launched, self.template.knobs, np.asarray(codes))

    def codes_of(self, numbers: Indices) -> list[Codes]:
        """The codes of some kernels as they are compiled, by their numbers."""
        codes = np.unravel_index(numbers, [len(knob.values) for knob in self.template.knobs])
        return [tuple(each) for each in np.stack(codes, axis=1).tolist()]


@dataclass(frozen=True)
class Random:
    """A random problem, and what the models expect of the kernels of each space.

    Attributes
    ----------
    problem
        The problem.
    kernels, logs
        Of each space the numbers of the kernels that are not `FAR` behind, in order, and the log of the time of each
        over that of the fastest of all spaces, in the order of its tiles that suits it best; of shape [kernels].
    """

    problem: GemmProblem
    kernels: tuple[Indices, ...]
    logs: tuple[Floats, ...]

    def regrets(self, space: int, numbers: Indices) -> Floats:
        """Those of some kernels of a space, of their shape; NaN of those that are illegal or far behind."""
        kernels, logs = self.kernels[space], self.logs[space]
        if not len(kernels):
            return np.full(np.shape(numbers), np.nan)
        at = np.minimum(np.searchsorted(kernels, numbers), len(kernels) - 1)
        return np.where(kernels[at] == numbers, logs[at], np.nan)

    def fastest(self, space: int) -> Indices:
        """The numbers of the few kernels of a space that are expected to be the fastest."""
        return self.kernels[space][np.argsort(self.logs[space], kind="stable")[:EACH]]


def foreseen(sources: Sequence[Source], problem: GemmProblem) -> Random:
    """The expectation of every kernel of a problem's spaces."""
    kernels, logs = [], []
    for source in sources:
        space = source.template.space(problem, DEVICE)
        means = source.model.foresee(space_features(space, source.template)).mean
        order = np.argsort(means, kind="stable")
        of_space, first = np.unique(source.numbers_of(space.codes)[order], return_index=True)
        kernels.append(of_space)
        logs.append(means[order[first]])
    least = min(each.min() for each in logs)
    near = [each < least + FAR for each in logs]
    return Random(
        problem,
        tuple(each[some] for each, some in zip(kernels, near, strict=True)),
        tuple(each[some] - least for each, some in zip(logs, near, strict=True)),
    )


def compiled_once(source: Source, kernels: Sequence[Codes], logs: Floats) -> tuple[list[Codes], Floats]:
    """Kernels of which those that differ in their launch alone are one, at its best.

    Parameters
    ----------
    source
        Their space.
    kernels, logs
        Their codes, and the logs of their times, of shape [kernels, problems]; NaN where one was not timed.
    """
    numbers, place = np.unique(source.numbers_of(kernels), return_inverse=True)
    best = np.full((len(numbers), logs.shape[1]), np.inf)
    np.minimum.at(best, place, np.nan_to_num(logs, nan=np.inf))
    best[np.isinf(best)] = np.nan
    return source.codes_of(numbers), best


def recorded_together(sources: Sequence[Source], signature: str) -> Regrets:
    """The measured regrets, over the fastest of all spaces, on the problems that were recorded in each of them.

    Each `Kernel` begins with the number of its space.

    Raises
    ------
    TableError
        If no problem of the signature was recorded in all of them.
    """
    each = [recorded_logs(source.template, source.tables, signature) for source in sources]
    problems = [one for one in each[0][1] if all(one in others for _, others, _ in each)]
    if not problems:
        names = " and ".join(source.template.name for source in sources)
        raise TableError(f"no problem of the signature {signature} was timed in {names}: name tables of both")
    kernels, logs = list[Kernel](), list[Floats]()
    for number, (source, (codes, known, of_space)) in enumerate(zip(sources, each, strict=True)):
        once, best = compiled_once(source, codes, of_space[:, [known.index(one) for one in problems]])
        kernels += [(number, *of_kernel) for of_kernel in once]
        logs.append(best)
    together = np.concatenate(logs)
    files = ", ".join(table.path.name for source in sources for table in source.tables)
    return Regrets(tuple(kernels), tuple(problems), together - np.nanmin(together, axis=0), f"measured, {files}")


def numbered(sources: Sequence[Source], kernels: Sequence[Kernel]) -> list[tuple[Indices, Indices]]:
    """Of each space the places of its kernels among some, and their numbers."""
    spaces = np.array([kernel[0] for kernel in kernels])
    places = [np.flatnonzero(spaces == number) for number in range(len(sources))]
    return [
        (some, source.numbers_of([kernels[place][1:] for place in some.tolist()]) if len(some) else some)
        for source, some in zip(sources, places, strict=True)
    ]


def chosen(
    sources: Sequence[Source], regrets: Regrets, drawn: Sequence[Random], given: Sequence[Kernel], count: int
) -> list[Kernel]:
    """The kernels of the least mean regret, half of it over recorded problems and half over random ones.

    Parameters
    ----------
    sources
        The spaces.
    regrets, drawn
        Of recorded and of random problems.
    given
        Kernels that are there anyway. They come first.
    count
        How many to choose, with those.
    """
    near = {*given}
    near |= {
        each for each, logs in zip(regrets.kernels, regrets.logs, strict=True) if np.nanmin(logs, initial=np.inf) < NEAR
    }
    for one in drawn:
        for number, source in enumerate(sources):
            near |= {(number, *codes) for codes in source.codes_of(one.fastest(number))}
    candidates = sorted(near)
    places = {each: place for place, each in enumerate(candidates)}
    logs = np.full((len(candidates), len(regrets.problems) + len(drawn)), np.nan)
    for each, of_kernel in zip(regrets.kernels, regrets.logs, strict=True):
        if each in places:
            logs[places[each], : len(regrets.problems)] = of_kernel
    for number, (rows, numbers) in enumerate(numbered(sources, candidates)):
        for at, one in enumerate(drawn, start=len(regrets.problems)):
            logs[rows, at] = one.regrets(number, numbers)
    weights = np.repeat([0.5 / len(regrets.problems), 0.5 / len(drawn)], [len(regrets.problems), len(drawn)])
    picked = choose_portfolio(logs, weights, count, given=[places[each] for each in given])
    print(f"{len(candidates)} candidates, mean regret {np.expm1(picked.regret[-1]):.2%} with {count}", flush=True)
    return [candidates[row] for row in picked.picked]


def worth(sources: Sequence[Source], kernels: Sequence[Kernel], fresh: Sequence[Random]) -> dict[str, float]:
    """The regrets that some kernels leave on random problems that they were not chosen on, by the models."""
    known = list(enumerate(numbered(sources, kernels)))
    regrets = [np.concatenate([one.regrets(number, numbers) for number, (_, numbers) in known]) for one in fresh]
    left = np.expm1([np.nanmin(each, initial=FAR) for each in regrets])
    return {
        "mean": float(left.mean()),
        "median": float(np.median(left)),
        "90": float(np.quantile(left, 0.9)),
        "beyond": float((left > 0.01).mean()),
    }


def known_kernels(sources: Sequence[Source], named: Sequence[Sequence[Configuration]]) -> list[Kernel]:
    """The kernels that configurations are compiled as; some are named of each space."""
    found = list[Kernel]()
    for number, (source, configurations) in enumerate(zip(sources, named, strict=True)):
        codes = codes_known(source.template.knobs, configurations)
        found += [(number, *each) for each in source.codes_of(np.unique(source.numbers_of(codes)))]
    return found


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--kernels", default=1024, show_default=True, help="How many to choose, for each type.")
@click.option("--drawn", "count", default=2400, show_default=True, help="Random problems of each type.")
@click.option(
    "--write",
    "written",
    type=click.Path(path_type=Path),
    help="Write each space's file into this folder.",
)
@seed_option
def main(run: Run, tables: tuple[Path, ...], kernels: int, count: int, written: Path | None, seed: int) -> None:
    """Choose kernels, and print what they are worth on problems left out."""
    read = [Table.read(path) for path in tables]
    names = sorted({table.card.space for table in read})
    files = {name: written / f"{name}.json" for name in names} if written is not None else {}
    for path in files.values():
        check_writable(path)
    sources = [Source.of(name, read) for name in names]
    knobs = {source.template.name: [knob.name for knob in source.template.knobs] for source in sources}
    result = dict[str, Any]()
    signatures = dict.fromkeys(problem.signature for table in read for problem in table.problems)
    recordings = {signature: recorded_together(sources, signature) for signature in signatures}
    for signature, regrets in recordings.items():
        drawn = [foreseen(sources, problem) for problem in drawn_problems(signature, count + FRESH, seed)]
        any_of_type = drawn[0].problem
        given = known_kernels(sources[:1], [sources[0].template.portfolio(any_of_type, DEVICE)])
        rows = chosen(sources, regrets, drawn[:-FRESH], given, kernels)
        now = known_kernels(sources, [source.template.stock(any_of_type, DEVICE) for source in sources])
        apart = left_out(regrets, kernels, FOLDS)
        fresh, before = worth(sources, rows, drawn[-FRESH:]), worth(sources, now, drawn[-FRESH:])
        result[signature] = {"kernels": listed(sources, rows), "given": len(given), "problems": len(regrets.problems)}
        result[signature] |= {"left_out": apart, "fresh": fresh, "before": {"kernels": len(now), "fresh": before}}
        print(f"{signature}: {apart['curve'][-1]['regret']:.2%} at most on recorded problems left out", flush=True)
        for what, left in ((f"these {len(rows)}", fresh), (f"the {len(now)} shipped now", before)):
            told = f"{left['mean']:.2%}, {left['median']:.2%} in the median, {left['90']:.2%} at the 90th percentile"
            print(f"by the models, on random problems left out, {what}: {told}", flush=True)
        run.keep({"knobs": knobs, "of": result})
    for name, path in files.items():
        lists = {signature: of["kernels"][name] for signature, of in result.items()}
        shipped = {"about": "kernels to have in a store", "knobs": knobs[name], "of": lists}
        write_whole(path, (json.dumps(shipped, indent=None) + "\n").replace("], [", "],\n[").encode())


def listed(sources: Sequence[Source], kernels: Sequence[Kernel]) -> dict[str, list[list[Any]]]:
    """The values of the knobs of some kernels, by the names of their spaces."""
    found = dict[str, list[list[Any]]]()
    for number, source in enumerate(sources):
        codes = [kernel[1:] for kernel in kernels if kernel[0] == number]
        found[source.template.name] = [
            [knob.values[code] for knob, code in zip(source.template.knobs, row, strict=True)] for row in codes
        ]
    return found
