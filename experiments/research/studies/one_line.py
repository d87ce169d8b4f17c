"""Tell what `autotune` brings to a model: seconds of the first call, and times of a step beside TorchInductor's own.

    python -m tilescout.experiments.research one-line --client qwen3 --phase decode --rows 1 --rows 40 --out qwen3.json

**First calls.** Each contender compiles the model in a process of its own, with caches of its own that are empty, and
once more in a second process, with the caches of the first. The times are those of the line itself and of the first
call, for each number of rows in turn; making the model is not counted.

**Steps.** One more process has all contenders, and runs them in turns, each round in a new random order. `called` is
the time by the clock on the wall of some steps that are queued one after the other, `graph` that of a CUDA graph of
some steps. Both are ratios to `default`, with the quartiles over the rounds. The first two contenders are measured
before a third is compiled, and again with it: what is measured is kept when the time is over. With `--alone` nothing of
the others is compiled while one is measured, as in a process that has one line: Dynamo looks at the compiled code of
all in turn when the model is called. The contenders then come one after the other, and once more in the reverse order.

**What products can bring.** The library's time of all products of a graph over the time of a step is their share. Were
each as fast as the roofline allows, the step would take the last ratio: no tuning of products goes below it.
"""

import re
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.clients import (
    CACHE_LENGTH,
    PHASES,
    SHORTEST_CACHE,
    SIZES,
    Client,
    Step,
    make_client,
)
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.search.autotuning import autotune
from tilescout.search.autotuning.inductor import STORE
from tilescout.search.autotuning.tuner import TunerOptions
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.processes import module_command, safe_environment

if TYPE_CHECKING:
    import torch

CONTENDERS = ("default", "ours", "max-autotune")
ONE_BY_ONE = "one-by-one"
"""The contender that is ours without products that share A as branches of a graph."""

COPIED = "copied-heads"
"""The contender that is ours with keys and values copied for heads that share them, as the model has it."""

_OURS = {
    "ours": TunerOptions(),
    ONE_BY_ONE: TunerOptions(side_by_side=False),
    COPIED: TunerOptions(keys_in_place=False),
}

_MODES = {"max-autotune": "max-autotune-no-cudagraphs"}
_ROUNDS = 30
_STEPS = 5  # that are timed together
_WARM = 8  # steps before anything is timed
# Steps that differ in none of these are comparable; of what older files lack, how it was measured.
_MODEL = {"client": "", "phase": "", "layers": 0, "dynamic": False, "alone": False, "cache": CACHE_LENGTH}


@dataclass(frozen=True)
class Asked:
    """The options of the same names."""

    client: str
    phase: str
    layers: int
    rows: tuple[int, ...]
    contenders: tuple[str, ...]
    seconds: float
    store: Path | None
    dynamic: bool = False
    alone: bool = False
    cache: int = CACHE_LENGTH

    def make(self) -> Client:
        """The client, on the GPU."""
        return make_client(self.client, self.phase, self.layers, "cuda", self.cache)


def first_call(asked: Asked) -> dict[str, Any]:
    """The seconds of the first call of the first contender, for each number of rows in turn."""
    import torch

    made = asked.make()
    torch.cuda.synchronize()
    started = time.perf_counter()
    compiled, tuned = compiled_by(asked.contenders[0], made.module, asked)
    seconds = [time.perf_counter() - started]  # of the line itself
    with torch.set_grad_enabled(asked.phase == "train"):
        for count in asked.rows:
            step = made.call(compiled, count)
            torch.cuda.synchronize()
            started = time.perf_counter()
            step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "summary": str(tuned)}


def steps(asked: Asked, keep: Callable[[Any], None]) -> dict[str, Any]:
    """The times of a step of all contenders, in turns; kept as they come."""
    import torch

    made = asked.make()
    found: dict[str, Any] = {"summaries": {}}
    held: dict[str, tuple[Any, Any]] = {}
    with torch.set_grad_enabled(asked.phase == "train"):
        for count in asked.rows:
            if not asked.dynamic:
                held = {}
                torch._dynamo.reset()
            running: dict[str, Step] = {}
            for contender in asked.contenders:
                held[contender] = held.get(contender) or compiled_by(contender, made.module, asked)
                compiled, tuned = held[contender]
                running[contender] = made.call(compiled, count)
                started = time.perf_counter()
                for _ in range(_WARM):
                    result = running[contender]()
                torch.cuda.synchronize()
                found.setdefault("warming", {})[f"{contender} {count}"] = time.perf_counter() - started
                if contender == "default":
                    expected = result.clone()
                else:
                    difference = (result.float() - expected.float()).norm() / expected.float().norm()
                    found.setdefault("difference", {})[f"{contender} {count}"] = float(difference)
                    found[str(count)] = {"called": in_turns(_from_the_prompt(running, _called))}
                if contender == "ours":
                    found["summaries"][str(count)] = str(tuned)
                keep(found)
                if contender != "default":
                    found[str(count)] |= _in_graphs(running)
                    keep(found)
    return found


def steps_alone(asked: Asked, keep: Callable[[Any], None]) -> dict[str, Any]:
    """The times of a step of each contender while nothing of the others is compiled; kept as they come."""
    import torch

    made = asked.make()
    found: dict[str, Any] = {"summaries": {}}
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    with torch.set_grad_enabled(asked.phase == "train"):
        for contender in (*asked.contenders, *reversed(asked.contenders)):
            torch._dynamo.reset()
            compiled, tuned = compiled_by(contender, made.module, asked)
            for count in asked.rows:
                step = made.call(compiled, count)
                for _ in range(_WARM):
                    step()
                for way, timed in (("called", _called), ("graph", graph_of)):
                    (run,) = _from_the_prompt({contender: step}, timed).values()
                    taken = [run() for _ in range(_ROUNDS)]
                    times.setdefault(str(count), {}).setdefault(way, {}).setdefault(contender, []).extend(taken)
                if contender == "ours" and str(tuned):
                    found["summaries"].setdefault(str(count), str(tuned))
            for rows, ways in times.items():
                found[rows] = {way: _one_by_one(taken) for way, taken in ways.items()}
            keep(found)
    return found


def _one_by_one(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Times in µs of each, and its ratios to the default's median: no two were measured in the same round."""
    default = median(times["default"])
    found = {}
    for name, taken in times.items():
        low, _, high = (each / default for each in quantiles(taken, n=4))
        found[name] = {"us": median(taken), "ratio": median(taken) / default, "quartiles": [low, high]}
    return found


def _from_the_prompt(
    running: "Mapping[str, Step]", timed: "Callable[[Step], Callable[[], float]]"
) -> "dict[str, Callable[[], float]]":
    """Timed runs of each step, as if the prompt had just been read: a graph does not mind the end of the cache."""
    for step in running.values():
        step.restart()
    return {name: timed(step) for name, step in running.items()}


def _in_graphs(running: "Mapping[str, Step]") -> dict[str, Any]:
    """The times of contenders in turns, each in a graph; why there are none of a step that can't be captured."""
    try:
        return {"graph": in_turns(_from_the_prompt(running, graph_of))}
    except RuntimeError as error:  # as one that trains
        return {"no graph": str(error).splitlines()[0]}


def compiled_by(contender: str, module: "torch.nn.Module", asked: Asked) -> tuple[Any, Any]:
    """The model as a contender compiles it, and the account of autotune; empty text for TorchInductor alone."""
    import torch

    dynamic = asked.dynamic
    if contender not in _OURS:
        return torch.compile(module, mode=_MODES.get(contender), dynamic=dynamic), ""
    with autotune(asked.seconds, asked.store or STORE, _OURS[contender]) as tuned:
        return torch.compile(module, dynamic=dynamic), tuned


def _called(step: Any) -> "Callable[[], float]":
    import torch

    def run() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(_STEPS):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / _STEPS * 1e6

    return run


def graph_of(step: Any, steps: int = _STEPS) -> "Callable[[], float]":
    """A function that replays a CUDA graph of some steps and returns the time of one, in µs."""
    import torch

    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / steps * 1e3

    return run


def in_turns(running: "Mapping[str, Callable[[], float]]") -> dict[str, Any]:
    """Times in µs of each, and its ratios to the default's of the same round."""
    generator, names = np.random.default_rng(0), list(running)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, _ROUNDS):
        for at in generator.permutation(len(names)):
            taken = running[names[at]]()
            if turn >= 0:
                times[names[at]].append(taken)
    found = {}
    for name in names:
        ratios = [mine / default for mine, default in zip(times[name], times["default"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        found[name] = {"us": median(times[name]), "ratio": median(ratios), "quartiles": [low, high]}
    return found


_LISTED = re.compile(r"^ +(\d+) × (\S+): .* \(([\d.]+) µs\)", re.MULTILINE)  # a product, as a summary lists it


def room_for_products(summary: str, step_us: float, device: str = "h200") -> tuple[float, float]:
    """The products' share of a step, and the step over itself if each product were as fast as the roofline allows.

    Parameters
    ----------
    summary
        The account of autotune, which lists the products with the library's times.
    step_us
        The default's step.
    device
        It ran there.
    """
    found = [(int(count), GemmProblem.parse(text), float(us)) for count, text, us in _LISTED.findall(summary)]
    library = sum(count * us for count, _, us in found)
    least = sum(count * Roofline.of(problem, find_device(device)).time_us for count, problem, _ in found)
    return library / step_us, 1 - (library - least) / step_us


def _show_room(console: Console, steps: Mapping[str, Any]) -> None:
    grid = Grid(title="in a graph: what matrix products can bring", title_justify="left")
    for heading in ("rows", "products' share", "ours", "all products at the roofline"):
        grid.add_column(heading, justify="right")
    for rows, ways in steps.items():
        summary = steps["summaries"].get(rows, "") if rows.isdigit() else ""
        if summary and "ours" in (graph := ways.get("graph", {})):
            share, least = room_for_products(summary, graph["default"]["us"])
            grid.add_row(rows, f"{share:.1%}", f"{graph['ours']['ratio']:.4f}", f"{least:.4f}")
    console.print(grid)


def _show(result: Mapping[str, Any]) -> None:
    console = Console(width=140)
    grid = Grid(title="first call, seconds", title_justify="left")
    for heading in ("contender", "process", "the line, then a first call for each number of rows"):
        grid.add_column(heading)
    for name, processes in result["first"].items():
        for number, one in enumerate(processes, 1):
            seconds = " ".join(f"{each:.2f}" for each in one.get("seconds", []))
            grid.add_row(name, str(number), seconds or one["error"])
    console.print(grid)
    grid = Grid(title="a step: µs, and over the default's [quartiles]", title_justify="left")
    for heading in ("rows", "how", "contender", "µs", "ratio"):
        grid.add_column(heading, justify="right")
    for rows, ways in result["steps"].items():
        if not rows.isdigit():
            continue
        for way in ("called", "graph"):
            for name, one in ways.get(way, {}).items():
                low, high = one["quartiles"]
                grid.add_row(rows, way, name, f"{one['us']:.1f}", f"{one['ratio']:.4f} [{low:.4f}, {high:.4f}]")
    console.print(grid)
    if "summaries" in result["steps"]:
        _show_room(console, result["steps"])
    for rows, summary in result["steps"].get("summaries", {}).items():
        console.print(f"{rows} rows: {summary}", markup=False)


_COLOURS = {
    "default": "#64748b",
    "ours": "#2563eb",
    "max-autotune": "#d97706",
    ONE_BY_ONE: "#059669",
    COPIED: "#9333ea",
}


def draw_steps(result: Mapping[str, Any], path: Path) -> None:
    """Draw the time of a step and of a token over the rows, and the ratio to the default's."""
    from matplotlib.figure import Figure

    steps = {int(rows): ways for rows, ways in result["steps"].items() if rows.isdigit()}
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    token, ratio = figure.subplots(1, 2)
    for way, line in (("graph", "-"), ("called", "--")):
        for name, colour in _COLOURS.items():
            found = {rows: ways[way][name] for rows, ways in sorted(steps.items()) if name in ways.get(way, {})}
            if not found:
                continue
            rows, label = list(found), f"{name}, {'in a graph' if way == 'graph' else way}"
            style = {"color": colour, "linestyle": line, "marker": "o", "markersize": 3.5, "label": label}
            token.plot(rows, [one["us"] / count for count, one in found.items()], **style)
            ratio.plot(rows, [one["ratio"] for one in found.values()], **style)
    for axes in (token, ratio):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(steps), list(map(str, steps)))
        axes.set_xlabel("batch size" if result["phase"] == "decode" else "tokens")
        axes.grid(alpha=0.3)
    token.set_yscale("log")
    token.set_ylabel("µs a token")
    ratio.set_ylabel("time over default's")
    ratio.legend(fontsize=8)
    token.set_title(f"{result['client']}, {result['phase']}, {result['layers']} layers", loc="left")
    figure.savefig(path)


@study(GPU_OR_RECORD, again=True, draw=draw_steps)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the steps into this file, with --again.")
@click.option(
    "--and",
    "others",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Print and draw with --again the steps of this file too, of the same model at other rows; repeatable.",
)
@click.option("--client", type=click.Choice(["block", *SIZES]), default="block", show_default=True, help="The model.")
@click.option("--phase", type=click.Choice(PHASES), default="decode", show_default=True, help="How it is run.")
@click.option("--layers", type=click.IntRange(1), default=2, show_default=True, help="Layers of the model.")
@click.option("--rows", type=click.IntRange(1), multiple=True, default=(1, 40), help="Rows; repeatable.")
@click.option(
    "--contender",
    "contenders",
    type=click.Choice([*CONTENDERS, ONE_BY_ONE, COPIED]),
    multiple=True,
    default=CONTENDERS,
    help="Who is compared, in this order; default comes first. Repeatable.",
)
@click.option(
    "--seconds", type=Finite(min=0), default=TunerOptions.seconds, show_default=True, help="Budget of autotune."
)
@click.option("--dynamic", is_flag=True, help="Compile once for all rows.")
@click.option(
    "--cache",
    type=click.IntRange(SHORTEST_CACHE),
    default=CACHE_LENGTH,
    show_default=True,
    help="Tokens that the static cache holds.",
)
@click.option("--alone", is_flag=True, help="Measure each contender while no other is compiled.")
@click.option("--steps-only", is_flag=True, help="Leave the first calls out.")
@click.option("--first-only", is_flag=True, help="Leave the steps out.")
@click.option("--limit", type=Finite(min=0), default=300.0, show_default=True, help="Seconds that a process may take.")
@click.option("--step", "only", hidden=True, help="Do this alone, in this process: first or steps.")
@click.option("--store", type=click.Path(path_type=Path), hidden=True, help="The evidence store of --step.")
def main(
    run: Run,
    plot: Path | None,
    others: tuple[Path, ...],
    limit: float,
    steps_only: bool,
    first_only: bool,
    only: str | None,
    **options: Any,
) -> None:
    """Measure, or print what was measured."""
    asked = Asked(**options)
    if only == "first":
        run.keep(first_call(asked))
    elif only is not None:
        (steps_alone if asked.alone else steps)(asked, run.keep)
    elif run.record is None:
        if asked.contenders[0] != "default":
            raise click.UsageError("--contender default comes first: the others are measured against it")
        _show(_measure(run, asked, ("first",) * (not steps_only) + ("steps",) * (not first_only), limit))
    else:
        whole = joined([run.record.result, *(Record.read(other).result for other in others)])
        _show(whole)
        if plot is not None:
            draw_steps(whole, plot)


def joined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first result, with the steps of the others.

    Raises
    ------
    UsageError
        If they are of other models.
    """
    whole = {**results[0], "steps": dict(results[0]["steps"])}
    for other in results[1:]:
        if any(other.get(name, unsaid) != whole.get(name, unsaid) for name, unsaid in _MODEL.items()):
            raise click.UsageError("--and takes steps of the same model, in the same phase, with as many layers")
        summaries = {**whole["steps"].get("summaries", {}), **other["steps"].get("summaries", {})}
        whole["steps"] |= {**other["steps"], "summaries": summaries}
    return whole


def _measure(run: Run, asked: Asked, parts: Collection[str], limit: float) -> dict[str, Any]:
    """The result, each part of which another process measures."""
    result: dict[str, Any] = {name: getattr(asked, name) for name in _MODEL}
    result |= {"first": {}, "steps": {}}
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for contender in asked.contenders * ("first" in parts):
            result["first"][contender] = []
            for _ in range(1 if contender == "max-autotune" else 2):
                first = _in_a_process("first", replace(asked, contenders=(contender,)), place, contender, limit)
                result["first"][contender].append(first)
                run.keep(result)
        if "steps" in parts:
            result["steps"] = _in_a_process("steps", asked, place, "all", limit)
            run.keep(result)
    return result


def _in_a_process(step: str, asked: Asked, folder: Path, cache: str, limit: float) -> dict[str, Any]:
    """The answer of a process that does one step, with caches of this name and an evidence store of this folder."""
    out, caches = folder / "out.json", str(folder / cache)
    out.unlink(missing_ok=True)
    options: list[object] = ["--step", step, "--out", out, "--store", folder / "evidence"]
    for name in ("client", "phase", "layers", "seconds", "cache"):
        options += [f"--{name}", getattr(asked, name)]
    options += [word for count in asked.rows for word in ("--rows", count)]
    options += [word for contender in asked.contenders for word in ("--contender", contender)]
    options += ["--dynamic"] * asked.dynamic + ["--alone"] * asked.alone
    command = module_command("tilescout.experiments.research", "one-line", *map(str, options))
    environment = {**safe_environment(), "TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": caches}
    error = {}
    try:
        subprocess.run(command, env=environment, check=True, timeout=limit)
    except subprocess.TimeoutExpired:
        error = {"error": f"killed after {limit:g} s"}
    except subprocess.CalledProcessError as failed:  # it has printed why
        error = {"error": f"ended with exit code {failed.returncode}"}
    found: dict[str, Any] = Record.read(out).result if out.exists() else {}
    return {**found, **error}
