"""Measure where the wall time of a tuning goes, on some of the cores, from an empty store and from a full one.

    python -m tilescout.experiments.research wall-time --out wall-time.json
    python -m tilescout.experiments.research wall-time --drawn 7 --count 3 --suite 5 --state empty --out wall-time.json

Tunes each problem with `guided` in a process of its own: from an empty store, from one that has the kernels of that
tuning, and from one that has the portfolio, as ``tilescout compile --portfolio`` fills it. Without a GPU it compiles
the default and 15 random configurations of each problem instead. A process is limited to so many cores by its
affinity. The first tuning of a problem has nothing stand by (`alone`). The next one has to start what stands by, and
those behind it find it ready. CPU seconds are those of what the process itself started, without those of what stands
by. With ``--drawn`` the problems are drawn from published models, as those of the suite `out-of-sample` are: products
that no cost model learned from, and other rows by every seed. With ``--suite`` so many of them are also tuned
together, by ``tilescout tune --suite`` from an empty store. Every second is counted once:

- `start`: until the modules are imported that set the GPU up
- `set up`: until the measuring process, the GPU's context and the problem are ready; the first kernels are compiled
  meanwhile
- `propose`: from then on, while nothing is in flight: the sampler, the study's files, MLflow where it is not open yet
- `compile`: of the search, while kernels are compiled and the GPU waits
- `measure`: of the search, while the GPU measures
- `race`: from the last trial until the answer is known
- `log`: until MLflow has all, pictures included
- `exit`: until the process has ended
"""

import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.draw_problems import drawn, pool_option
from tilescout.experiments.research.timed_tuning import kernels
from tilescout.search.build.cores import available_cores
from tilescout.search.build.standby import leave, peer_of, running
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.processes import module_command, safe_environment
from tilescout.spaces.suite import Entry, write_suite

PROBLEMS = ("1792x5120x2560:bf16", "96x7168x2048:bf16")
"""Neither in a recorded table nor in a shipped suite: one of many rows and one of few."""

CORES = (2, 8, 16)
KERNELS = 16
"""Kernels of a problem that are compiled where there is no GPU."""

ALONE, STARTING, STANDING = "alone", "starting", "standing by"
STATES = (("empty", ALONE), ("empty", STARTING), ("empty", STANDING), ("full", STANDING), ("portfolio", STANDING))
"""Pairs of the store's content and the processes that stand by."""

KEPT = ("alone", "starting", "empty", "full", "portfolio")
"""The names of `STATES` on the command line."""

PHASES = ("start", "set up", "propose", "compile", "measure", "race", "log", "exit")

Spans = Sequence[Sequence[float]]


def covered(spans: Spans, begin: float, end: float) -> list[tuple[float, float]]:
    """The parts of an interval that lie in any of the spans, in order and apart."""
    parts: list[tuple[float, float]] = []
    for low, high in sorted((max(low, begin), min(high, end)) for low, high in spans):
        if high <= low:
            continue
        if parts and low <= parts[-1][1]:
            parts[-1] = parts[-1][0], max(parts[-1][1], high)
        else:
            parts.append((low, high))
    return parts


def length(parts: Spans) -> float:
    """The seconds of parts that lie apart."""
    return sum(high - low for low, high in parts)


def account(times: Mapping[str, Any], ended: float) -> dict[str, float]:
    """The seconds of each of `PHASES`; they add up to `ended`, the seconds that the process lived."""
    begin, end = times["prepared"], times["searched"]
    measuring = length(covered(times["measuring"], begin, end))
    busy = length(covered([*times["measuring"], *times["compiling"]], begin, end))
    answered = times["raced"]
    return {
        "start": times["imported"],
        "set up": begin - times["imported"],
        "propose": end - begin - busy,
        "compile": busy - measuring,
        "measure": measuring,
        "race": answered - end,
        "log": times["logged"] - answered,
        "exit": ended - times["logged"],
    }


def environment(standing: str) -> dict[str, str]:
    """The environment of a command whose processes stand by under a folder of their own."""
    return {**safe_environment(), "XDG_RUNTIME_DIR": standing}


def timed(cores: int, asked: Mapping[str, object], standing: str) -> dict[str, Any]:
    """Run one tuning or compiling on so many cores: its account, and what it was about.

    Parameters
    ----------
    cores
        How many it may use.
    asked
        What it is to do; see `tilescout.experiments.research.timed_tuning`.
    standing
        The folder of the processes that stand by.

    Raises
    ------
    CalledProcessError
        If it fails; it has said why.
    """
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    store = artifacts(Path(str(asked["store"])))
    held = kernels(store)  # not in the process, whose time counts: on a host with slow files that took 0.1 s
    before, launched = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    command = module_command("tilescout.experiments.research.timed_tuning", json.dumps({**asked, "launched": launched}))
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        env=environment(standing),
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        text=True,
        check=True,
    )
    ended, after = time.time() - launched, resource.getrusage(resource.RUSAGE_CHILDREN)
    times = json.loads(done.stdout.splitlines()[-1])
    return {
        "problem": times["problem"],
        "cores": times["cores"],
        "seconds": ended,
        "answered": times["raced"],
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "trials": times["trials"],
        "compiled": kernels(store) - held,
        "compile_core_seconds": times["compile_seconds"],
        "account": account(times, ended),
        "times": times,
    }


def timed_suite(cores: int, problems: Sequence[str], folder: Path, standing: str, complement: bool) -> dict[str, Any]:
    """Tune problems together on so many cores, by the command and from an empty store: when it answered, and the rest.

    The searches share the GPU and the compilers: their accounts overlap. With `complement`, some problems have two.

    Raises
    ------
    CalledProcessError
        If it fails; it has said why.
    """
    store, results, suite = folder / "store", folder / "results.json", folder / "drawn.toml"
    entries = [Entry(problem, "drawn") for problem in problems]
    suite.write_text(write_suite("Drawn problems", "published models", entries))
    options = ["--suite", str(suite), "--sampler", "guided", "--store", str(store), "--json", str(results)]
    options += [] if complement else ["--no-complement"]
    command = module_command("tilescout.experiments", "tune", "gemm_sm90", *options)
    launched, answered = time.time(), 0.0
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=environment(standing),
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores]),
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("gemm_sm90, suite"):  # the title of the table
                answered = time.time() - launched
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    found = json.loads(results.read_text())
    return {
        "problems": list(problems),
        "complement": complement,
        "cores": cores,
        "seconds": time.time() - launched,
        "answered": answered,
        "trials": [one["trials"] for one in found],
        "compiled": kernels(artifacts(store)),
        "compile_core_seconds": sum(one["compile_seconds"] for one in found),
        "gpu_seconds": sum(one["gpu_seconds"] for one in found),
        "studies": [{name: one[name] for name in ("problem", "space", "trials", "stopped", "wall")} for one in found],
        "speedups": [one["best"]["speedup_over_library"] for one in found],
    }


def draw(seed: int, count: int, pool: str) -> list[str]:
    """Problems of published models that no suite holds."""
    problems = [entry.problem for entry in drawn(seed, pool)]
    chosen = np.random.default_rng(seed).choice(len(problems), count, replace=False)
    return [problems[at] for at in chosen]


def fill(problem: str, store: str, standing: str) -> None:
    """Compile the portfolio into a store, on all cores, and print how that went.

    Raises
    ------
    CalledProcessError
        If it fails; it has said why.
    """
    options = ("--problem", problem, "--portfolio", "--store", store)
    command = module_command("tilescout.experiments", "compile", "gemm_sm90", *options)
    done = subprocess.run(command, capture_output=True, env=environment(standing), text=True, check=True)
    print(done.stdout.splitlines()[-1])


@study("a GPU; without one it only compiles")
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option(
    "--cores", multiple=True, default=CORES, show_default=True, type=click.IntRange(min=1), help="How many; repeatable."
)
@click.option("--drawn", "seed", type=click.IntRange(min=0), help="Draw the problems by this seed instead.")
@pool_option
@click.option("--count", default=1, show_default=True, help="Problems to draw for each number of cores.")
@click.option("--suite", "together", default=0, help="Also tune so many drawn problems together, on the most cores.")
@click.option("--suites", default=1, show_default=True, help="How many such suites.")
@click.option(
    "--complement/--no-complement", default=True, help="Whether suites search a second space where it may help."
)
@click.option("--state", "names", multiple=True, type=click.Choice(KEPT), default=KEPT, help="Repeatable.")
def main(
    run: Run,
    problems: tuple[str, ...],
    cores: tuple[int, ...],
    seed: int | None,
    pool: str,
    count: int,
    together: int,
    suites: int,
    complement: bool,
    names: tuple[str, ...],
) -> None:
    """Tune every problem on so many cores each, and print where the time went."""
    if together and seed is None:
        raise click.UsageError("--suite tunes drawn problems: say by which seed, with --drawn")
    found: list[dict[str, Any]] = []
    suited: list[dict[str, Any]] = []
    gpu = bool(visible_gpus())
    # No problem is tuned twice, so that none was seen before.
    chosen = iter(draw(seed, len(cores) * count + suites * together, pool) if seed is not None else ())
    states = [state for state, name in zip(STATES, KEPT, strict=True) if name in names]
    print("seconds of a tuning" if gpu else f"seconds of compiling {KERNELS} kernels")
    columns = ("answer", "all", "CPU", *PHASES)
    head = f"{'problem':>22} cores store     {'processes':12}"
    print(f"{head}{''.join(f'{column:>8}' for column in columns)}  trials compiled")
    with TemporaryDirectory(dir="/tmp") as standing:  # the path of a socket has 107 bytes at most
        try:
            for number in range(suites if gpu and together else 0):
                with TemporaryDirectory() as folder:
                    drawn_ = list(islice(chosen, together))
                    suited.append(timed_suite(max(cores), drawn_, Path(folder), standing, complement))
                run.keep({"tuned": gpu, "runs": found, "suites": suited})
                last = suited[-1]
                print(
                    f"suite {number + 1} of {together}, {max(cores)} cores: answer {last['answered']:.2f} s, "
                    f"all {last['seconds']:.2f} s, GPU {last['gpu_seconds']:.2f} s, trials {last['trials']}, "
                    f"compiled {last['compiled']}",
                    flush=True,
                )
                for one in last["studies"]:
                    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in one["wall"].items())
                    print(f"{one['problem']:>22} {one['space']:18} {parts}", flush=True)
            for cores_ in [each for each in cores if each <= available_cores()] or [available_cores()]:
                for problem in islice(chosen, count) if seed is not None else problems:
                    for timed_one in tuned(problem, cores_, states, gpu, standing):
                        found.append(timed_one)
                        run.keep({"tuned": gpu, "runs": found, "suites": suited})
        finally:
            end_all(standing)


def end_all(standing: str) -> None:
    """End the processes that stand by under a folder, as is done by `kill`."""
    for place in Path(standing).glob("*/*.socket"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.connect(str(place))
            os.kill(peer_of(asked)[0], signal.SIGTERM)
        leave(place)


def wait_until_ready(standing: str) -> bool:
    """Wait until all that stands by under a folder is ready, a minute at most; whether anything does."""
    folder, deadline = Path(standing, "tilescout"), time.monotonic() + 60
    while (ready := len(running(folder))) < len(list(folder.glob("*.socket"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return ready > 0


def tuned(
    problem: str, cores: int, states: Sequence[tuple[str, str]], gpu: bool, standing: str
) -> Iterator[dict[str, Any]]:
    """Tune a problem in every state of the store and of what stands by, and print where the time went."""
    with TemporaryDirectory() as folder:
        for kept, processes in states if gpu else [state for state in states if state[0] != "portfolio"]:
            store = str(Path(folder, f"{processes if kept == 'empty' else STANDING}-{kept == 'portfolio'}"))
            if kept == "portfolio":
                fill(problem, store, standing)
            if processes == STARTING:
                end_all(standing)
            elif processes == STANDING and not wait_until_ready(standing):
                processes = STARTING  # no command before this one has started them
            asked = {"problem": problem, "store": store, "standby": processes != ALONE}
            asked |= {} if gpu else {"count": KERNELS}
            one = timed(cores, asked, standing) | {"store": kept, "processes": processes}
            shown = [one["answered"], one["seconds"], one["cpu_seconds"], *one["account"].values()]
            head = f"{problem:>22} {one['cores']:5} {kept:10}{processes:12}"
            print(
                f"{head}{''.join(f'{value:8.2f}' for value in shown)}{one['trials']:8}{one['compiled']:9}",
                flush=True,
            )
            yield one
