"""Fit the defaults of `gemm_sm90`, and judge them on problems that were left out.

    python -m tilescout.experiments.research defaults search/tables/recorded/*.parquet --out defaults.json

The default of a problem is one of a portfolio of configurations: the one that small trees expect to be the fastest.
`tilescout.experiments.research.defaults_fit` says how both are fitted. Here that is done without a sixth of the shapes
at a time, and judged on the problems left out. A shape is left out as a whole: the defaults of a product in bf16 and in
fp8 are much the same. A configuration that was given up counts with the time of its pilot.

The regret is to the fastest row among the configurations that may become defaults, which is partly lucky. It is that of
a configuration of the portfolio that was recorded on the problem. With `--write` the study fits defaults to all of the
problems, and writes the file that is shipped.

No table of the suite `out-of-sample` may be named: those problems judge the defaults that were chosen here.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.commands.outputs import check_writable
from tilescout.experiments.research.defaults_fit import FitOptions, Recorded, chosen, fit, read
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm_sm90.defaults import write_defaults
from tilescout.spaces.gemm_sm90.template import KNOBS, TEMPLATE
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups
from tilescout.spaces.subspace import SubSpace, read_subspace
from tilescout.spaces.suite import find_suite
from tilescout.spaces.tiling import Integers

KEPT_OUT = "out-of-sample"


def parts(problems: Sequence[Problem], count: int, generator: np.random.Generator) -> list[Integers]:
    """Positions of the problems, in so many parts of about as many shapes; no shape is in two of them."""
    labels = np.array(shape_groups(problems))
    shapes = generator.permutation(np.unique(labels))
    return [np.flatnonzero(np.isin(labels, shapes[part::count])) for part in range(min(count, len(shapes)))]


def checked(tables: Sequence[Table]) -> list[Table]:
    """The tables, none of which holds a problem that nothing may be chosen on.

    Raises
    ------
    TableError
        If one does.
    """
    kept_out = set(find_suite(KEPT_OUT).problems)
    for table in tables:
        if known := kept_out & set(map(str, table.problems)):
            raise TableError(f"{table.path} holds {min(known)} of the suite {KEPT_OUT}: no default is chosen on it")
    return list(tables)


def the_subspace() -> SubSpace:
    """The stated part of the space that the shipped tables have all of."""
    return read_subspace(shipped_tables()[0].with_name("gemm_sm90-subspace.toml"), KNOBS)


def shipped_regret(one: Recorded) -> float:
    """Log of the time over the best of the shipped default of a recorded problem; NaN if it was not recorded."""
    default = TEMPLATE.default(one.problem, one.device)
    row = tuple(default[knob.name] for knob in KNOBS)
    return float(one.logs[one.rows.index(row)]) if row in one.rows else float("nan")


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--folds", default=6, show_default=True, help="Parts of the shapes to leave out in turn; 0 judges nothing."
)
@click.option("--kernels", default=FitOptions.kernels, show_default=True, help="Configurations of a portfolio.")
@click.option("--write", type=click.Path(path_type=Path), help="Fit to all problems, and write the defaults there.")
@seed_option
def main(run: Run, tables: tuple[Path, ...], folds: int, kernels: int, write: Path | None, seed: int) -> None:
    """Print how good the shipped defaults are, and ones that are fitted without the problem."""
    if write is not None:
        check_writable(write)
    read_tables = checked([Table.read(path) for path in tables])
    problems = read(read_tables, the_subspace())
    options = FitOptions(kernels=kernels, seed=seed)
    held_out: dict[int, float] = {}
    for left in parts([one.problem for one in problems], folds, np.random.default_rng(seed)) if folds else []:
        fitted = fit([one for at, one in enumerate(problems) if at not in left], options, {})
        held_out |= {int(at): chosen(problems[at], fitted) for at in left}
    if write is not None:
        source = {table.path.name: table.card.sha256 for table in read_tables}
        write_defaults(write, fit(problems, options, source), KNOBS)
    run.keep(
        {
            str(one.problem): {
                "table": one.table,
                "best": one.best,
                "default": float(np.exp(shipped_regret(one))),
                **({"held_out": float(np.exp(held_out[at]))} if at in held_out else {}),
            }
            for at, one in enumerate(problems)
        }
    )
    assert run.record is not None
    print_figures(run.record.result)


def print_figures(result: dict[str, dict[str, float]]) -> None:
    """Print the regret of each problem, and by table the mean, the worst, and the speed over the library."""
    console = Console(width=160)
    grid = Grid(title="time over the best recorded", title_justify="left")
    for heading in ("problem", "best over the library", "the default", "chosen without the problem"):
        grid.add_column(heading)
    for name, one in result.items():
        grid.add_row(name, *(f"{one.get(key, np.nan):.3f}" for key in ("best", "default", "held_out")))
    console.print(grid)
    means = Grid(title="by table: geometric mean of the time over the best, the worst, and speed over the library")
    for heading in ("table", "problems", "the default", "", "", "chosen without the problem", "", ""):
        means.add_column(heading)
    for table in [*dict.fromkeys(str(one["table"]) for one in result.values()), "all"]:
        of_table = [one for one in result.values() if table in (one["table"], "all")]
        cells = []
        for key in ("default", "held_out"):
            found = np.array([one.get(key, np.nan) for one in of_table])
            speed = np.array([one["best"] for one in of_table]) / found
            cells += [f"{np.exp(np.log(found).mean()):.3f}", f"{found.max():.3f}"]
            cells += [f"{np.exp(np.log(speed).mean()):.3f}, least {speed.min():.3f}"]
        means.add_row(table, str(len(of_table)), *cells)
    console.print(means)
