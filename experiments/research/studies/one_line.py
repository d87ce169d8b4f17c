"""Tell what `autotune` brings to a model: seconds of the first call, and times of a step beside TorchInductor's own.

    python -m tilescout.experiments.research one-line --client qwen3 --phase decode --rows 1 --rows 40 --out qwen3.json

**First calls.** Each contender compiles the model in a process of its own, with caches of its own that are empty, and
once more in a second process, with the caches of the first. The times are those of the line itself and of the first
call, for each number of rows in turn; making the model is not counted. All processes make their models at once and then
wait, so that none measures beside another.

**Steps.** One more process has all contenders, and runs them in turns, each round in a new random order. `called` is
the time by the clock on the wall of some steps that are queued one after the other, `graph` that of a CUDA graph of
some steps. Both are ratios to `default`, with the quartiles over the rounds. The first two contenders are measured
before a third is compiled, and again with it: what is measured is kept when the time is over. With `--alone` nothing of
the others is compiled while one is measured, as in a process that has one line: Dynamo looks at the compiled code of
all in turn when the model is called. The contenders then come one after the other, and once more in the reverse order,
when nothing more is tuned.

**What products can bring.** The library's time of all products of a graph over the time of a step is their share. Were
each as fast as the roofline allows, the step would take the last ratio: no tuning of products goes below it.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
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
from tilescout.experiments.research.contenders import (
    COLOURS,
    CONTENDERS,
    COPIED,
    IN_GRAPHS,
    ONE_BY_ONE,
    OPTIONS,
    OURS,
    PRODUCTS,
)
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.step_times import (
    ROUNDS,
    called,
    difference,
    from_the_prompt,
    graph_of,
    in_graphs,
    in_turns,
    one_by_one,
    replayed,
)
from tilescout.search.autotuning import autotune
from tilescout.search.autotuning.inductor import STORE
from tilescout.search.autotuning.tuner import TunerOptions
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.processes import module_command, safe_environment

if TYPE_CHECKING:
    import torch

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
    stands_by: bool = False

    def make(self) -> Client:
        """The client, on the GPU; of a process that stands by, once it is told to go on."""
        import torch

        made = make_client(self.client, self.phase, self.layers, "cuda", self.cache)
        torch.cuda.synchronize()
        if self.stands_by and not sys.stdin.readline():
            raise click.ClickException("who started this process has ended")
        return made


def first_call(asked: Asked) -> dict[str, Any]:
    """The seconds of the first call of the first contender, for each number of rows in turn.

    Of a model that counts its steps in Python, the first two: Dynamo compiles at the second once more.
    """
    import torch

    made = asked.make()
    started = time.perf_counter()
    compiled, tuned = compiled_by(asked.contenders[0], made, asked)
    seconds = [time.perf_counter() - started]  # of the line itself
    with torch.set_grad_enabled(asked.phase == "train"):
        for count in asked.rows:
            step = made.call(compiled, count)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(1 + made.counts):
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
                held[contender] = held.get(contender) or compiled_by(contender, made, asked)
                compiled, tuned = held[contender]
                running[contender] = made.call(compiled, count)
                result = warmed(running[contender], f"{contender} {count}", found)
                if contender == "default":
                    expected = result.clone()
                else:
                    found.setdefault("difference", {})[f"{contender} {count}"] = difference(result, expected)
                    found[str(count)] = {"called": in_turns(from_the_prompt(running, called))}
                if contender == "ours":
                    found["summaries"][str(count)] = str(tuned)
                keep(found)
                if contender != "default":
                    found[str(count)] |= in_graphs(partial(from_the_prompt, running, graph_of))
                    keep(found)
            if asked.phase == "decode" and "graph" in found.get(str(count), {}):
                found.setdefault("replayed", {})[str(count)] = {name: replayed(step) for name, step in running.items()}
                keep(found)
    return found


def warmed(step: Step, name: str, found: dict[str, Any]) -> "torch.Tensor":
    """The logits of the last of some steps; how long these took is kept by this name."""
    import torch

    started = time.perf_counter()
    for _ in range(_WARM):
        result = step()
    torch.cuda.synchronize()
    found.setdefault("warming", {})[name] = time.perf_counter() - started
    return result


def steps_alone(asked: Asked, keep: Callable[[Any], None]) -> dict[str, Any]:
    """The times of a step of each contender while nothing of the others is compiled; kept as they come."""
    import torch

    made = asked.make()
    found: dict[str, Any] = {"summaries": {}}
    times: dict[str, dict[str, dict[str, list[float]]]] = {}
    with torch.set_grad_enabled(asked.phase == "train"):
        again = replace(asked, seconds=0.0, contenders=asked.contenders[::-1])
        for contender, now in [(each, way) for way in (asked, again) for each in way.contenders]:
            torch._dynamo.reset()
            compiled, tuned = compiled_by(contender, made, now)
            for count in asked.rows:
                step = made.call(compiled, count)
                for _ in range(_WARM):
                    step()
                for way, timed in (("called", called), ("graph", graph_of)):
                    (run,) = from_the_prompt({contender: step}, timed).values()
                    taken = [run() for _ in range(ROUNDS)]
                    times.setdefault(str(count), {}).setdefault(way, {}).setdefault(contender, []).extend(taken)
                if contender == "ours" and str(tuned):
                    found["summaries"].setdefault(str(count), str(tuned))
            for rows, ways in times.items():
                found[rows] = {way: one_by_one(taken) for way, taken in ways.items()}
            keep(found)
    return found


def compiled_by(contender: str, made: Client, asked: Asked) -> tuple[Any, Any]:
    """The model as a contender compiles it, and the account of autotune; empty text for TorchInductor alone."""
    import torch

    dynamic = asked.dynamic or (None if made.counts else False)
    if contender not in OURS:
        return torch.compile(made.module, options=OPTIONS.get(contender), dynamic=dynamic), ""
    with autotune(asked.seconds, asked.store or STORE, OURS[contender]) as tuned:
        return torch.compile(made.module, dynamic=dynamic), tuned


_LISTED = re.compile(r"^ +(\d+) × (\S+): .* \(([\d.]+) µs\)", re.MULTILINE)  # a product, as a summary lists it


def room_for_products(summary: str, step_us: float) -> tuple[float, float]:
    """The products' share of a step, and the step over itself if each product were as fast as the roofline allows.

    Parameters
    ----------
    summary
        The account of autotune, which lists the products with the library's times.
    step_us
        The default's step, on an H200.
    """
    found = [(int(count), GemmProblem.parse(text), float(us)) for count, text, us in _LISTED.findall(summary)]
    library = sum(count * us for count, _, us in found)
    least = sum(count * Roofline.of(problem, find_device("h200")).time_us for count, problem, _ in found)
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


def show(result: Mapping[str, Any]) -> None:
    """Print what was measured."""
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
    for rows, found in result["steps"].get("replayed", {}).items():
        told = ", ".join(f"{name} {most:.2g}" for name, most in found.items())
        console.print(f"{rows} rows: results of replays differ from those of calls by {told} at most", markup=False)
    for rows, summary in result["steps"].get("summaries", {}).items():
        console.print(f"{rows} rows: {summary}", markup=False)
    for what, why in unmeasured_steps(result["steps"]).items():
        console.print(f"not measured: {what}, {why}", markup=False)


def unmeasured_steps(steps: Mapping[str, Any]) -> dict[str, str]:
    """Of which steps there are no times, and why."""
    failed = {name.removeprefix("error of "): why for name, why in steps.items() if name.startswith("error")}
    return {**steps.get("left out", {}), **failed}


def draw_steps(result: Mapping[str, Any], path: Path) -> None:
    """Draw the time of a step and of a token over the rows, and the ratio to the default's."""
    from matplotlib.figure import Figure

    steps = {int(rows): ways for rows, ways in result["steps"].items() if rows.isdigit()}
    figure = Figure(figsize=(10, 4.2), dpi=120, layout="constrained")
    token, ratio = figure.subplots(1, 2)
    for way, line in (("graph", "-"), ("called", "--")):
        for name, colour in COLOURS.items():
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
    type=click.Choice([*CONTENDERS, PRODUCTS, ONE_BY_ONE, COPIED, IN_GRAPHS]),
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
@click.option("--stands-by", is_flag=True, hidden=True, help="Wait for a line of input before --step.")
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
        show(_measure(run, asked, ("first",) * (not steps_only) + ("steps",) * (not first_only), limit))
    else:
        whole = joined([run.record.result, *(Record.read(other).result for other in others)])
        show(whole)
        if plot is not None:
            draw_steps(whole, plot)


def joined(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first result, with the steps of the others, of other rows or other contenders.

    Raises
    ------
    UsageError
        If they are of other models.
    """
    whole = {**results[0], "steps": dict(results[0]["steps"])}
    for other in results[1:]:
        if any(other.get(name, unsaid) != whole.get(name, unsaid) for name, unsaid in _MODEL.items()):
            raise click.UsageError("--and takes steps of the same model, in the same phase, with as many layers")
        whole["steps"] = merged(whole["steps"], other["steps"])
    return whole


def merged(one: Any, other: Any) -> Any:
    """One mapping, with what of another it lacks, on all levels."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return one
    return {**other, **{key: merged(value, other.get(key)) for key, value in one.items()}}


def unmeasured(asked: Asked) -> dict[str, Any]:
    """The result before anything was measured."""
    return {**{name: getattr(asked, name) for name in _MODEL}, "first": {}, "steps": {}}


def _measure(run: Run, asked: Asked, parts: Collection[str], limit: float) -> dict[str, Any]:
    """The result, each part of which another process measures."""
    result = unmeasured(asked)
    with TemporaryDirectory() as folder, ExitStack() as running:
        place, waiting = Path(folder), {}
        for number, contender in product(range(2), asked.contenders * ("first" in parts)):
            if number == 0 or contender not in OPTIONS:
                own, out = replace(asked, contenders=(contender,)), place / f"{contender}-{number}.json"
                waiting[out] = contender, running.enter_context(_process("first", own, place, contender, out))
        if "steps" in parts:
            out = place / "steps.json"
            cache = asked.contenders[0]  # what it compiled for its first call is there, and is not timed again
            waiting[out] = "", running.enter_context(_process("steps", asked, place, cache, out))
        for out, (contender, process) in waiting.items():
            try:
                found, interrupted = ended(process, out, limit), False
            except KeyboardInterrupt:
                found, interrupted = measured(out), True
            if contender:
                result["first"].setdefault(contender, []).append(found)
            else:
                result["steps"] = found
            run.keep(result)
            if interrupted:
                raise KeyboardInterrupt
    return result


def _process(step: str, asked: Asked, folder: Path, cache: str, out: Path) -> "subprocess.Popen[bytes]":
    """A process that does one step, with caches of this name and an evidence store of this folder; it stands by."""
    options: list[object] = ["--step", step, "--stands-by", "--store", folder / "evidence"]
    for name in ("client", "phase", "layers", "seconds", "cache"):
        options += [f"--{name}", getattr(asked, name)]
    options += [word for count in asked.rows for word in ("--rows", count)]
    options += [word for contender in asked.contenders for word in ("--contender", contender)]
    options += ["--dynamic"] * asked.dynamic + ["--alone"] * asked.alone
    return begun("one-line", options, folder / cache, out)


def begun(name: str, options: Sequence[object], caches: Path, out: Path) -> "subprocess.Popen[bytes]":
    """A process that runs a study.

    Parameters
    ----------
    name, options
        The study, and its options.
    caches
        The folder of TorchInductor's and Triton's caches.
    out
        The file to write.
    """
    command = module_command("tilescout.experiments.research", name, *map(str, options), "--out", str(out))
    environment = {**safe_environment(), "TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches)}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)


def ended(process: "subprocess.Popen[bytes]", out: Path, limit: float) -> dict[str, Any]:
    """The result of a study that a process runs; with an ``error``, as far as it came, if it takes too long or fails.

    Parameters
    ----------
    process
        Of `begun`. One that stands by is told to go on.
    out
        The file that it writes.
    limit
        Seconds that it may take from now.
    """
    error = {}
    try:
        process.communicate(b"\n", timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        error = {"error": f"killed after {limit:g} s"}
    if process.wait() and not error:  # it has printed why
        error = {"error": f"ended with exit code {process.returncode}"}
    return {**measured(out), **error}


def measured(out: Path) -> dict[str, Any]:
    """The result as far as a process has come."""
    return Record.read(out).result if out.exists() else {}
