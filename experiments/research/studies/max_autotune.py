"""Tell what TorchInductor's max-autotune brings to a model at several batch sizes, compiled at the same time.

    python -m tilescout.experiments.research max-autotune --client qwen3 --rows 16 --rows 64 --out max-autotune.json

max-autotune keeps one core busy for most of a minute for each batch size, so one-line, which has one process, takes
minutes for a few. Here each batch size has a process, which compiles the model with TorchInductor's default and with
max-autotune. What TorchInductor benchmarks meanwhile takes turns on the GPU. Once all have compiled they measure, one
after the other, as one-line does: both contenders in turns, called and in a graph. one-line prints and draws the record
with those of its own (`--and`).
"""

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.clients import SIZES
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.studies.one_line import (
    Asked,
    begun,
    draw_steps,
    ended,
    merged,
    show,
    steps,
    unmeasured,
)
from tilescout.experiments.research.turns import Turns

CONTENDERS = ("default", "max-autotune")
_COMPILING = 0.85
"""The share of a process's time after which it measures, though others still compile."""


@study(GPU_OR_RECORD, again=True, draw=draw_steps)
@click.option("--client", type=click.Choice([*SIZES]), default="qwen3", show_default=True, help="The model.")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Layers of the model.")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(16,), help="Batch sizes; repeatable.")
@click.option("--limit", type=Finite(min=0), default=300.0, show_default=True, help="Seconds that a process may take.")
@click.option("--turns", type=click.Path(path_type=Path), hidden=True, help="The folder of those that take turns.")
@click.option("--processes", type=click.IntRange(1), default=1, hidden=True, help="How many take turns.")
def main(
    run: Run, client: str, layers: int, rows: tuple[int, ...], limit: float, turns: Path | None, processes: int
) -> None:
    """Measure, or print what was measured."""
    if run.record is not None:
        show(run.record.result)
        return
    asked = Asked(client, "decode", layers, rows, CONTENDERS, 0.0, None)
    if turns is None:
        show(_measured(run, asked, limit))
    else:
        _take_turns(run, asked, Turns(turns, processes, limit * _COMPILING))


def _take_turns(run: Run, asked: Asked, turns: Turns) -> None:
    """Compile and measure, in one of the processes."""
    with ExitStack() as held:
        held.enter_context(turns.benchmarks_alone())

        def compiled_two() -> None:
            turns.meet(str(asked.rows[0]))
            held.close()  # nothing is to wait for a turn within one
            held.enter_context(turns.alone())

        steps(asked, run.keep, compiled_two)


def _measured(run: Run, asked: Asked, limit: float) -> dict[str, Any]:
    """The result, of which a process measures each batch size."""
    result = unmeasured(asked)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(asked.rows)) as pool:
        place = Path(folder)
        options = ["--client", asked.client, "--layers", asked.layers, "--turns", place, "--processes", len(asked.rows)]

        def of(rows: int) -> dict[str, Any]:
            mine, out = [*options, "--rows", rows, "--limit", limit], place / f"{rows}.json"
            with begun("max-autotune", mine, place / "caches", out) as process:
                found = ended(process, out, limit)
            return {f"{name} of {rows}" if name == "error" else name: each for name, each in found.items()}

        for done in as_completed([pool.submit(of, rows) for rows in asked.rows]):
            result["steps"] = merged(result["steps"], done.result())
            run.keep(result)
    return result
