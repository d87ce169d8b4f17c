"""Search random problems in both spaces of matrix products, and write what was measured as tables to learn from.

    python -m tilescout.experiments.research searched-tables --count 72 --trials 60 --seed 1001 --write tables

A search corrects its model by what it measures. So it looks at kernels that are nearly the fastest, and at those that
the model was wrong about. The problems are random: rows as in `draw-problems`, and no product is one of a published
model that problems to judge by are drawn of. A few are searched together, so that one compiles while another measures,
and nobody asks whether the searches would have ended sooner. The tables are those of `tilescout tables from-studies`.
"""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tilescout.experiments.commands.options import Finite, seed_option
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.experiments.research.studies.default_kernels import random_problems
from tilescout.experiments.research.studies.judged_tables import DEVICE, SPACES, tell
from tilescout.search.campaigns.from_studies import check_new, comparable, table_of_studies
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.selection import make_engine
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.places import study_store
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import tune_suite
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.texts import number_of

TOGETHER = 6
"""Problems that are searched together: compilers are busy then, and their operands fit on a GPU."""

LEAST_FLOP, LEAST_BYTES = 1.4e9, 12.9e6
"""Problems with less than both are left out: on an H200 they take 2 and 3 µs, and launching takes as long."""

NO_RACE = RaceOptions(candidates=1, looks=1, fewest=1)
"""The shortest race there is: it does not matter here which kernel is the fastest."""


def drawn(seed: int, count: int, signature: str) -> list[GemmProblem]:
    """Random problems that take some microseconds at least."""
    some = random_problems(signature, seed)
    found = (each for each in some if each.flops > LEAST_FLOP or each.bytes > LEAST_BYTES)
    return list(islice(found, count))


def searched(engine: Engine, problems: Sequence[GemmProblem], trials: int, folder: Path) -> None:
    """Search problems together, in as many trials each on average, and keep their studies."""
    options = TuneOptions("guided", 0, Budget(trials * len(problems), whole=True), studies(folder), race=NO_RACE)
    started = time.monotonic()
    results = tune_suite(engine, problems, options)
    tried = number_of(sum(len(result.trials) for result in results), "trial")
    click.echo(f"{tried} in {time.monotonic() - started:.0f} s: {', '.join(map(str, problems))}")


@study(GPU)
@click.option("--count", default=72, show_default=True, type=click.IntRange(min=1), help="Problems.")
@click.option("--signature", default="bf16", show_default=True, help="Element types, as in a problem's name.")
@click.option("--trials", default=60, show_default=True, type=click.IntRange(min=1), help="Of each, on average.")
@click.option("--seconds", type=Finite(min=0), help="Begin no more problems after so many.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), required=True, help="The folder of tables.")
@seed_option
def main(run: Run, count: int, signature: str, trials: int, seconds: float | None, write: Path, seed: int) -> None:
    """Write tables of what searches of random problems measured, one of each space."""
    problems, begun, told = drawn(seed, count, signature), time.monotonic(), {}
    name = f"{DEVICE}-searched-{seed}-{signature.replace(':', '-')}.parquet"
    out = {space: write / f"{space}-{name}" for space in SPACES}
    for path in out.values():
        check_new(path)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with make_engine(find_template(SPACES[0]), problems[0], artifacts(folder), device="cuda", gpus=1) as engine:
            for at in range(0, count, TOGETHER):
                some = problems[at : at + TOGETHER]
                try:
                    searched(engine, some, trials, folder)
                except TilescoutError as error:  # what was measured is kept, that of these problems, too
                    click.echo(f"{', '.join(map(str, some))}: {one_line(error)}", err=True)
                if seconds is not None and time.monotonic() - begun > seconds:
                    break
        store = study_store(studies(folder))
        found = [store.read(each) for each in store.names()]
        for space, path in out.items():
            template = find_template(space)
            table = table_of_studies(comparable(found, template, None, None), template, path)
            told[path.name] = tell(table)
    run.keep(told)
