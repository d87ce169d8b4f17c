"""Where a cost model ranks the fastest of the kernels that a file lists and that were all timed.

    python -m tilescout.experiments.research listed-ranks listed.json --out ranks.json
    python -m tilescout.experiments.research listed-ranks listed.json --model before.npz --out ranks-before.json

Read are files of `stream-k listed`: kernels that were chosen by hand and timed in full. A search measures what its
model ranks first. So two things are told of each problem: the rank of the fastest of these kernels among all of the
space, and the speed of the fastest of those that a model puts first of them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.features import space_features
from tilescout.experiments.commands.predict import find_model, model_option
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

SPACE, DEVICE = "gemm_streamk_sm90", "h200"
FIRST = (5, 10, 20)
"""After so many of the timed kernels, in the order of the model, it is told how fast the fastest is."""


def ranked(space: SearchSpace, logs: Floats, timed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The rank of the fastest of some kernels of a space, and their speeds in the order of a model.

    Parameters
    ----------
    space
        All kernels of a problem.
    logs
        The log times that a model expects of them, of shape [kernels].
    timed
        Kernels as `stream-k listed` keeps them: a configuration, and the ratio of its time to the library's if it was
        right.

    Returns
    -------
    dict
        How many were timed and how many there are, the speed of the fastest over the library, its rank in the space,
        where 1 is the first, and the speed of the fastest of the first ones, by how many these are.

    Raises
    ------
    TilescoutError
        If none was timed, or the space does not have one.
    """
    right = [kernel for kernel in timed if kernel.get("ratio")]
    if not right:
        raise TilescoutError(f"none of the listed kernels was timed on {space.problem}: list some that are right")
    at = np.array([space.index(Configuration.of(kernel["configuration"])) for kernel in right])
    speeds = 1 / np.array([kernel["ratio"] for kernel in right])
    in_order = speeds[np.argsort(logs[at], kind="stable")]
    return {
        "timed": len(right),
        "kernels": len(space),
        "fastest": float(speeds.max()),
        "rank": int((logs < logs[at[speeds.argmax()]]).sum()) + 1,
        "first": {str(count): float(in_order[:count].max()) for count in FIRST},
    }


@study("files that `stream-k listed` wrote")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@model_option
def main(run: Run, files: Sequence[Path], model: str) -> None:
    """Print where a model ranks the fastest kernel of each problem."""
    fitted = find_model(SPACE, DEVICE, model)
    template, device = find_template(SPACE), find_device(DEVICE)
    found: dict[str, Any] = {}
    for path in files:
        for problem, told in Record.read(path).result["problems"].items():
            space = template.space(template.parse(problem), device)
            logs = fitted.predict(space_features(space, template)).mean
            found[problem] = ranked(space, logs, told["spaces"][SPACE])
    grid = Grid(title=f"kernels of {SPACE} that were listed by hand, speed over the library; {fitted.origin}")
    for heading in ("problem", "timed", "fastest", "its rank", *(f"of first {count}" for count in FIRST)):
        grid.add_column(heading)
    for problem, one in found.items():
        first = (f"{one['first'][str(count)]:.3f}" for count in FIRST)
        grid.add_row(
            problem, f"{one['timed']}", f"{one['fastest']:.3f}", f"{one['rank']:,} of {one['kernels']:,}", *first
        )
    Console(width=140).print(grid)
    run.keep({"model": fitted.origin, "problems": found})
