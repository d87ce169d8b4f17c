"""Tell what TorchInductor's max-autotune brings to a model at several batch sizes, beside the default and `autotune`.

    python -m tilescout.experiments.research max-autotune --client qwen3 --rows 16 --rows 64 --out max-autotune.json

max-autotune keeps one core busy for most of a minute for each batch size, so one-line, which has one process, takes
minutes for a few; max-autotune-products leaves all but the products as they are. Here each batch size has a process,
which compiles the model with TorchInductor's default, then with max-autotune, then with `autotune`. One more process
tunes the products of all batch sizes meanwhile, so that `autotune` finds them decided. What TorchInductor benchmarks
and each contest take turns on the GPU. Once all have compiled they measure, one after the other, as one-line does: all
contenders in turns, called and in a graph. Where max-autotune takes longer than there is time it is left out. one-line
prints and draws the record with those of its own (`--and`).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.clients import SIZES, Step, make_client, products
from tilescout.experiments.research.contenders import OPTIONS, PRODUCTS
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import called, difference, from_the_prompt, graph_of, in_graphs, in_turns
from tilescout.experiments.research.studies.one_line import (
    Asked,
    begun,
    compiled_by,
    draw_steps,
    ended,
    merged,
    show,
    unmeasured,
    warmed,
)
from tilescout.experiments.research.turns import OutOfTime, Turns
from tilescout.search.autotuning.inductor import make_tuner
from tilescout.search.autotuning.tuner import TunerOptions
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.spaces.gemm import GemmProblem

CONTENDERS = ("default", "max-autotune", "ours")
_COMPILING = 0.76
"""The share of a process's time after which max-autotune is left out."""

_WAITING = 0.83
"""The share of a process's time after which it measures, though others still compile."""


@study(GPU_OR_RECORD, again=True, draw=draw_steps)
@click.option("--client", type=click.Choice([*SIZES]), default="qwen3", show_default=True, help="The model.")
@click.option("--layers", type=click.IntRange(1), default=4, show_default=True, help="Layers of the model.")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(16,), help="Batch sizes; repeatable.")
@click.option(
    "--contender",
    "contenders",
    type=click.Choice([*CONTENDERS, PRODUCTS]),
    multiple=True,
    default=CONTENDERS,
    help="Who is compared, in this order; default comes first. Repeatable.",
)
@click.option("--limit", type=Finite(min=0), default=300.0, show_default=True, help="Seconds that a process may take.")
@click.option("--turns", "folder", type=click.Path(path_type=Path), hidden=True, help="The folder of all processes.")
@click.option("--processes", type=click.IntRange(1), default=1, hidden=True, help="How many of them measure.")
@click.option("--tune", is_flag=True, hidden=True, help="Be the process that tunes.")
def main(
    run: Run,
    client: str,
    layers: int,
    rows: tuple[int, ...],
    contenders: tuple[str, ...],
    limit: float,
    folder: Path | None,
    processes: int,
    tune: bool,
) -> None:
    """Measure, or print what was measured."""
    if run.record is not None:
        show(run.record.result)
        return
    if contenders[0] != "default":
        raise click.UsageError("--contender default comes first: the others are measured against it")
    asked = Asked(client, "decode", layers, rows, contenders, 0.0, None)
    if folder is None:
        show(_measured(run, asked, limit))
        return
    asked, turns = replace(asked, store=folder / "evidence"), Turns(folder, processes, limit * _COMPILING)
    if tune:
        run.keep(_tuned(asked, turns))
    else:
        _take_turns(run, asked, turns, replace(turns, patience=limit * _WAITING))


def _tuned(asked: Asked, turns: Turns) -> dict[str, Any]:
    """Decide the products of all batch sizes; the account of it."""
    made = make_client(asked.client, "decode", 1, "meta")
    tuner = make_tuner(asked.store or turns.folder, TunerOptions(seconds=turns.patience))
    with turns.contests_alone():
        for rows in asked.rows:  # each is kept when it is decided
            tuner.decide([Sighting(forms(problem), dynamic=False) for problem in products(made.module, rows)])
    tuner.close()
    return {"tuning": str(tuner.summary)}


def forms(problem: GemmProblem) -> list[GemmProblem]:
    """A product and, where it adds a bias, the same without."""
    return list(dict.fromkeys([problem, replace(problem, bias=False)]))


def _take_turns(run: Run, asked: Asked, turns: Turns, waiting: Turns) -> None:
    """Compile and measure one batch size, in one of the processes."""
    import torch

    made, (count,) = asked.make(), asked.rows
    found: dict[str, Any] = {"summaries": {}}
    running: dict[str, Step] = {}

    def compiled(contender: str) -> Any:
        model, tuned = compiled_by(contender, made, asked)
        running[contender] = made.call(model, count)
        result = warmed(running[contender], f"{contender} {count}", found)
        if contender == "ours":
            found["summaries"][str(count)] = str(tuned)
        return result

    with torch.no_grad():
        expected = compiled("default").clone()
        for contender in asked.contenders[1:]:
            try:
                with turns.benchmarks_alone(), turns.within_patience() if contender in OPTIONS else nullcontext():
                    result = compiled(contender)
                found.setdefault("difference", {})[f"{contender} {count}"] = difference(result, expected)
            except OutOfTime:
                running.pop(contender, None)
                found.setdefault("left out", {})[f"{contender} {count}"] = f"after {turns.patience:g} s"
            run.keep(found)
        waiting.meet(str(count))
        with waiting.alone():
            found[str(count)] = in_graphs(partial(from_the_prompt, running, graph_of))
            run.keep(found)
            found[str(count)]["called"] = in_turns(from_the_prompt(running, called))
            run.keep(found)


def _measured(run: Run, asked: Asked, limit: float) -> dict[str, Any]:
    """The result, of which a process measures each batch size."""
    result = unmeasured(asked)
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(asked.rows) + 1) as pool:
        place = Path(folder)
        options = ["--client", asked.client, "--layers", asked.layers, "--turns", place, "--processes", len(asked.rows)]
        options += [word for contender in asked.contenders for word in ("--contender", contender)]

        def part(name: str, *more: object) -> dict[str, Any]:
            out = place / f"{name}.json"
            with begun("max-autotune", [*options, *more, "--limit", limit], place / "caches", out) as process:
                found = ended(process, out, limit)
            return {f"{key} of {name}" if key == "error" else key: each for key, each in found.items()}

        parts: list[Callable[[], dict[str, Any]]] = [partial(part, str(rows), "--rows", rows) for rows in asked.rows]
        if "ours" in asked.contenders:
            rows = [word for count in asked.rows for word in ("--rows", count)]
            parts.append(partial(part, "tuning", "--tune", *rows))
        for done in as_completed([pool.submit(each) for each in parts]):
            result["steps"] = merged(result["steps"], done.result())
            run.keep(result)
    return result
