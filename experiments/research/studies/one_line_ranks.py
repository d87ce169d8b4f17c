"""Watch `autotune` in a program that several GPUs share: do its ranks run the same kernels, and how fast is a step?

    python -m tilescout.experiments.research one-line-ranks --layers 2 --rows 16 --rows 512 --out one-line-ranks.json

Each rank is a process with a GPU of its own, which holds its part of a stack of blocks, and compiles it. The sums over
the ranks are in the compiled graph. All ranks see one evidence store, as those of one host do, and each has caches of
its own. A program is run with TorchInductor's default and with `autotune`, each from empty caches, and once more with
the caches of the first time. The seconds are those of the line itself and of the first call, for each number of rows in
turn. One more program has both contenders, and times a step in turns, as `one-line` does.

Two ranks run the same if each product has the same kernel, or the library, in both.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite, collected
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import called, difference, graph_of, in_graphs, in_turns
from tilescout.experiments.research.studies.objectives import MODELS
from tilescout.experiments.research.studies.one_line import begun, ended
from tilescout.experiments.research.tensor_parallel import make_rank
from tilescout.search.autotuning import autotune
from tilescout.search.autotuning.tuner import TunerOptions
from tilescout.search.engines.gpus import visible_gpus
from tilescout.spaces.errors import DeviceError

DEFAULT, OURS = "default", "ours"
PARTS = (DEFAULT, OURS, "steps")
SIZES = MODELS["llama3-70b"]
_WARM = 8  # steps before anything is timed


@dataclass(frozen=True)
class Asked:
    """The options of the same names; of a rank: its part of the program, number, caches and rendezvous too."""

    ranks: int
    layers: int
    rows: tuple[int, ...]
    seconds: float
    limit: float
    part: str | None = None
    rank: int = 0
    job: Path | None = None
    store: Path | None = None
    device: str = "cuda"


def of_rank(asked: Asked, keep: Callable[[Any], None]) -> None:
    """Be a rank of one program, and keep what it tells."""
    import torch
    import torch.distributed as dist

    assert asked.store is not None
    device = asked.device
    if device == "cuda":
        device = f"cuda:{asked.rank}"
        torch.cuda.set_device(asked.rank)
    rendezvous = f"file://{asked.job}"
    backend = "nccl" if asked.device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=rendezvous, rank=asked.rank, world_size=asked.ranks)
    torch.manual_seed(asked.rank)
    module = make_rank(SIZES, asked.layers, asked.ranks, device)
    generator = torch.Generator(device).manual_seed(0)  # what goes in is the same in all ranks
    inputs = {
        count: torch.randn(count, SIZES.hidden, generator=generator, device=device).to(torch.bfloat16)
        for count in asked.rows
    }
    with torch.no_grad():
        module(inputs[asked.rows[0]])  # has the ranks meet, before anything is timed
    if not sys.stdin.readline():
        raise click.ClickException("who started this process has ended")
    with torch.no_grad():
        (_steps if asked.part == "steps" else _first)(asked, module, inputs, keep)
    dist.barrier()
    dist.destroy_process_group()


def _first(asked: Asked, module: Any, inputs: Mapping[int, Any], keep: Callable[[Any], None]) -> None:
    """The seconds of the line and of the first calls of one contender, and what it runs."""
    assert asked.part is not None
    started = time.perf_counter()
    compiled, tuned = _compiled(asked.part, module, asked)
    seconds = [time.perf_counter() - started]
    for x in inputs.values():
        started = time.perf_counter()
        float(compiled(x).float().sum())  # waits for it
        seconds.append(time.perf_counter() - started)
    keep({"seconds": seconds, **told(tuned)})


def _steps(asked: Asked, module: Any, inputs: Mapping[int, Any], keep: Callable[[Any], None]) -> None:
    """The times of a step of both contenders, in turns; kept as they come."""
    import torch

    found: dict[str, Any] = {"difference": {}, "steps": {}}
    for count, x in inputs.items():
        torch._dynamo.reset()
        compiled = {name: _compiled(name, module, asked) for name in (DEFAULT, OURS)}
        running = {name: partial(run, x) for name, (run, _) in compiled.items()}
        results = {name: [step() for _ in range(_WARM)][-1] for name, step in running.items()}
        found["difference"][str(count)] = difference(results[OURS], results[DEFAULT])
        steps = {"called": in_turns({name: called(step) for name, step in running.items()})}
        found["steps"][str(count)] = steps
        keep(found)
        steps |= in_graphs(partial(_captured, running))
        keep(found)


def _captured(running: Mapping[str, Callable[[], Any]]) -> dict[str, Callable[[], float]]:
    return {name: graph_of(step) for name, step in running.items()}


def _compiled(contender: str, module: Any, asked: Asked) -> tuple[Any, Any]:
    """The module as a contender compiles it, and the account of autotune; None for TorchInductor alone."""
    import torch

    if contender == DEFAULT:
        return torch.compile(module, dynamic=False), None
    assert asked.store is not None
    with autotune(asked.seconds, asked.store) as tuned:
        return torch.compile(module, dynamic=False), tuned


def told(tuned: Any) -> dict[str, Any]:
    """The kernels that an account of autotune tells of; nothing of TorchInductor alone."""
    if tuned is None:
        return {}
    runs = {str(problem): [str(each.choice), each.kernel] for problem, each in sorted(tuned.decisions.items())}
    return {"tuned": sorted(map(str, tuned.tuned)), "spent": tuned.seconds, "runs": runs, "summary": str(tuned)}


def alike(ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all ranks of a program ran the same kernels; not if one of them did not tell."""
    told = [each.get("runs") for each in ranks]
    return None not in told and all(each == told[0] for each in told)


def measured(asked: Asked, keep: Callable[[Any], None]) -> dict[str, Any]:
    """The result: all programs make their models at once and then wait, so that none measures beside another."""
    result: dict[str, Any] = {"ranks": asked.ranks, "layers": asked.layers, "rows": asked.rows, "programs": []}
    with TemporaryDirectory() as folder, ExitStack() as running, ThreadPoolExecutor(asked.ranks) as pool:
        waiting = []
        for number, part in [(0, DEFAULT), (0, OURS), (1, DEFAULT), (1, OURS), (0, "steps")]:
            program = f"{part}-{number}"
            started = [_process(asked, part, program, rank, Path(folder)) for rank in range(asked.ranks)]
            waiting.append((part, [(running.enter_context(process), out) for process, out in started]))
        for part, processes in waiting:
            told = list(pool.map(lambda each: ended(each[0], each[1], asked.limit), processes))
            result["programs"].append({"part": part, "ranks": told})
            keep(result)
    return result


def _process(asked: Asked, part: str, program: str, rank: int, folder: Path) -> "tuple[subprocess.Popen[bytes], Path]":
    """A rank's process, which stands by, and the file that it writes."""
    out = folder / f"{program}-{rank}.json"
    options: list[object] = ["--part", part, "--rank", rank, "--job", folder / f"{program}.job"]
    options += ["--store", folder / "evidence"]
    for name in ("ranks", "layers", "seconds"):
        options += [f"--{name}", getattr(asked, name)]
    options += [word for count in asked.rows for word in ("--rows", count)]
    cache = DEFAULT if part == "steps" else part  # what it compiled for its first call is there, and not timed again
    return begun("one-line-ranks", options, folder / f"{cache}-{rank}", out), out


def show(result: Mapping[str, Any]) -> None:
    """Print what was measured."""
    console = Console(width=140)
    grid = Grid(
        title=f"{result['layers']} layers, {result['ranks']} ranks: the line and first calls", title_justify="left"
    )
    for heading in ("program", "rank", "seconds, one for each number of rows", "sizes tuned", "ranks run the same"):
        grid.add_column(heading)
    for program in result["programs"]:
        if program["part"] == "steps":
            continue
        for rank, one in enumerate(program["ranks"]):
            seconds = " ".join(f"{each:.2f}" for each in one.get("seconds", [])) or one.get("error", "")
            same = "" if program["part"] == DEFAULT else str(alike(program["ranks"]))
            grid.add_row(program["part"], str(rank), seconds, str(len(one.get("tuned", ()))), same)
    console.print(grid)
    grid = Grid(title="a step: µs, and over the default's [quartiles]", title_justify="left")
    for heading in ("rows", "rank", "how", "contender", "µs", "ratio"):
        grid.add_column(heading, justify="right")
    for program in result["programs"]:
        for rank, one in enumerate(program["ranks"]):
            for count, ways in one.get("steps", {}).items():
                for way, each in product(("called", "graph"), (DEFAULT, OURS)):
                    if each not in ways.get(way, {}):
                        continue
                    time_of = ways[way][each]
                    low, high = time_of["quartiles"]
                    ratio = f"{time_of['ratio']:.4f} [{low:.4f}, {high:.4f}]"
                    grid.add_row(count, str(rank), way, each, f"{time_of['us']:.1f}", ratio)
    console.print(grid)
    for program in result["programs"]:
        for rank, one in enumerate(program["ranks"]):
            if one.get("tuned") or "error" in one:
                console.print(f"rank {rank}: {one.get('summary', '')} {one.get('error', '')}", markup=False)


@study(GPU_OR_RECORD, again=True)
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True, help="Processes, each with a GPU.")
@click.option("--layers", type=click.IntRange(1), default=2, show_default=True, help="Blocks of the stack.")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(16, 512), help="Rows; repeatable.")
@click.option(
    "--seconds", type=Finite(min=0), default=TunerOptions.seconds, show_default=True, help="Budget of autotune."
)
@click.option("--limit", type=Finite(min=0), default=120.0, show_default=True, help="Seconds that a program may take.")
@click.option("--part", type=click.Choice(PARTS), hidden=True, help="Be a rank of this program.")
@click.option("--rank", default=0, hidden=True, help="Its number.")
@click.option("--job", type=click.Path(path_type=Path), hidden=True, help="Where the ranks meet.")
@click.option("--store", type=click.Path(path_type=Path), hidden=True, help="The evidence store.")
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Run the programs, or print what was measured."""
    if asked.part is not None:
        of_rank(asked, run.keep)
        return
    if run.record is not None:
        show(run.record.result)
        return
    if (gpus := len(visible_gpus())) < asked.ranks:
        raise DeviceError(
            f"{asked.ranks} ranks need as many GPUs; of those there are {gpus} here: "
            "ask for fewer --ranks, at least 2, or print a file with --again"
        )
    show(measured(asked, run.keep))
