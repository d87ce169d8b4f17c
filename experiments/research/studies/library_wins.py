"""Why the library's kernel wins where it does: how its tiles and ours cover the result, side by side.

    python -m tilescout.experiments.research library-wins drawn.json rows.json --out wins.json

Read are files of the study `backends`. Of each problem on which the fastest of cuBLASLt's kernels is ahead of ours the
tile, the cluster and the parts of k of both are told, and their cover: the share of the multiprocessors' time, in whole
rounds of one block on each, in which elements of D are computed and neither padding nor nothing. Where the library's
cover is larger by more than it leads, its tiles say why it wins. Otherwise it is faster within a tile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.backend_rows import OURS, fastest_of_library, known_before
from tilescout.experiments.research.runner import Run, study
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.tiling import ceil_div

DEVICE = "h200"


@dataclass(frozen=True)
class Form:
    """How a kernel divides its work.

    Attributes
    ----------
    rows, columns
        Of D, in a tile.
    cluster_m, cluster_n
        Blocks of a cluster along D's rows and columns.
    parts
        Of k.
    blocks
        That compute a tile or a part of one.
    cover
        See above.
    """

    rows: int
    columns: int
    cluster_m: int
    cluster_n: int
    parts: int
    blocks: int
    cover: float

    @classmethod
    def of(cls, space: str, configuration: Mapping[str, Any], problem: GemmProblem) -> "Form":
        """The form of a configuration on a problem."""
        columns_of = {name: np.array([value]) for name, value in configuration.items()}
        tiling = find_template(space).tiling(columns_of, problem)
        if tiling is None:
            raise TilescoutError(f"{space} does not say how its kernels divide a product")
        facts = (tiling.rows, tiling.columns, tiling.cluster_m, tiling.cluster_n, tiling.split_k)
        rows, columns, cluster_m, cluster_n, parts = (int(np.ravel(fact)[0]) for fact in facts)
        across = (
            cluster_m * ceil_div(problem.m, rows * cluster_m),
            cluster_n * ceil_div(problem.n, columns * cluster_n),
        )
        blocks = math.prod(across) * parts * problem.batch
        processors = find_device(DEVICE).sms
        needed = problem.m * problem.n * problem.batch * parts / (rows * columns)
        return cls(
            rows, columns, cluster_m, cluster_n, parts, blocks, needed / (ceil_div(blocks, processors) * processors)
        )

    def __str__(self) -> str:
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        return f"{self.rows}x{self.columns}, {self.cluster_m}x{self.cluster_n}{parts}"


def wins(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Both forms on each problem on which a kernel of cuBLASLt's is ahead of ours, and by how much it is."""
    told = {}
    for text, one in found.items():
        rows, problem = one["rows"], GemmProblem.parse(text)
        fastest = fastest_of_library(rows)
        if fastest is None or "speed" not in rows.get(OURS, {}):
            continue
        ours = rows[OURS]
        lead = fastest["speed"]["value"] / ours["speed"]["value"]
        if lead <= 1:
            continue
        forms = [Form.of(row["space"], row["configuration"], problem) for row in (fastest, ours)]
        told[text] = {
            "lead": lead,
            "library": {"configuration": fastest["configuration"], **asdict(forms[0])},
            "ours": {"space": ours["space"], "configuration": ours["configuration"], **asdict(forms[1])},
            "told by tiles": forms[0].cover / forms[1].cover >= lead,
        }
    return dict(sorted(told.items(), key=lambda item: -item[1]["lead"]))


@study("files that `backends` wrote")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(run: Run, files: Sequence[Path]) -> None:
    """Print how the library's tiles and ours cover the result where the library wins."""
    _, found = known_before(files)
    told = wins(found)
    grid = Grid(title="where a kernel of cuBLASLt is ahead of ours; tile, cluster, parts of k, and cover")
    for heading in ("problem", "lead", "the library's", "cover", "ours", "cover", "of"):
        grid.add_column(heading)
    for text, one in told.items():
        cells = []
        for who in ("library", "ours"):
            form = Form(**{name: one[who][name] for name in Form.__dataclass_fields__})
            cells += [str(form), f"{form.cover:.0%}"]
        grid.add_row(text, f"{one['lead'] - 1:.1%}", *cells, one["ours"]["space"])
    console = Console(width=160)
    console.print(grid)
    tiled = sum(one["told by tiles"] for one in told.values())
    console.print(
        f"{len(told)} of {len(found)} problems; on {tiled} the library's cover is larger by more than its lead"
    )
    run.keep({"problems": len(found), "wins": told})
