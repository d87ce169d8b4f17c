"""Read the GPU's counters of kernels side by side: ours and the library's, on problems that ours loses.

    python -m tilescout.experiments.research kernel-counters drawn.json --problem 1169x4096x13696:bf16 --out out.json

Read are files of the study `backends`. On each problem the fastest of cuBLASLt's kernels and ours run, and those that
`--listed` names besides, as for the study `stream-k`; and those of a folder of `--kernels`, as for `kernel-variants`,
whose plan lists name, problem and the values of the knobs. Each runs alone for some time, over operands that do not fit
the L2, while NVML tells clock and power: a card that is at its power cap computes more slowly. They do so by turns, and
every other turn the other way round: a card that becomes warmer has a lower clock. Then Nsight Compute, `ncu`, launches
each of them once for every few counters, with an empty L2. It has to be on the PATH, and leaves the clocks alone. A
launch of more than one kernel is told as their sum, and shares of the peak as the largest.
"""

import csv
import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.backend_rows import OURS, fastest_of_library, known_before
from tilescout.experiments.research.kernels import CHAINS, compile_all, load_named
from tilescout.experiments.research.runner import GPU_OR_RECORD, PROGRAM, Run, device_option, study
from tilescout.experiments.research.studies.stream_k import SHARING, named
from tilescout.search.build.loading import Launch
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.machine import Machine
from tilescout.search.measure.measurement import Clocks
from tilescout.search.measure.verification import Case
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.processes import module_command
from tilescout.spaces.templates import find_template
from tilescout.spaces.texts import printable_line
from tilescout.spaces.workloads import load_workload

# Turns of each kernel, and seconds of a turn, the first half of which is not looked at. One kernel took 2,368 µs, and
# 2,410 µs some ten seconds later (4096x24576x8192, bf16, H200, 2026-12-01), so that one turn told when it was.
TURNS, SUSTAINED = 4, 0.6
CYCLES = "sm__cycles_active.avg"
COUNTERS: Mapping[str, tuple[str, float, str]] = MappingProxyType(
    {
        CYCLES: ("1000 cycles", 1e-3, ".1f"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("tensor cores, %", 1.0, ".1f"),
        "smsp__issue_active.avg.pct_of_peak_sustained_active": ("issuing, %", 1.0, ".1f"),
        "sm__inst_executed.sum": ("M instructions", 1e-6, ".1f"),
        "sm__inst_executed_pipe_tensor_op_gmma.sum": ("M WGMMA", 1e-6, ".2f"),
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": ("M additions", 1e-6, ".0f"),
        "l1tex__data_bank_reads.sum": ("M bank reads", 1e-6, ".0f"),
        "l1tex__m_xbar2l1tex_read_sectors.sum": ("M sectors to SMs", 1e-6, ".1f"),
        "lts__t_sectors_srcunit_tex.sum": ("M of L2", 1e-6, ".1f"),
        "dram__bytes_read.sum": ("MB of DRAM", 1e-6, ".0f"),
    }
)
"""What `ncu` counts of a launch: the heading it is shown by, as a multiple of what, and with how many digits."""
LAUNCHED = ("launch__grid_size", "launch__registers_per_thread", "launch__shared_mem_per_block_dynamic")
MARK = "spin_kernel"  # of `torch.cuda._sleep`: it parts the kernels of two launches
NCU = "ncu"
OF = "gemm_sm90"  # a space of these products, whose workload all of them have
STRETCH_US = 50_000.0  # between two looks at the clocks


@dataclass(frozen=True)
class Kernel:
    """A kernel that is asked for: its space, its configuration, and the folder of its file if it is compiled."""

    space: str
    configuration: Configuration
    folder: Path | None = None


def asked(
    files: Sequence[Path], problems: Sequence[str], listed: Path | None, folder: Path | None
) -> dict[GemmProblem, dict[str, Kernel]]:
    """The kernels of each problem, by a name.

    Raises
    ------
    TilescoutError
        If the files lack a problem, or a kernel of cuBLASLt's on it.
    """
    _, found = known_before(files)
    chosen: dict[GemmProblem, dict[str, Kernel]] = {}
    for text in problems:
        if text not in found:
            raise TilescoutError(f"the files have no problem {text}; they have {', '.join(found)}")
        rows = found[text]["rows"]
        fastest = fastest_of_library(rows)
        if fastest is None:
            raise TilescoutError(f"the files have no kernel of cuBLASLt's on {text}: name another problem")
        chosen[GemmProblem.parse(text)] = {
            name: Kernel(row["space"], Configuration.of(row["configuration"]))
            for name, row in (("the library's", fastest), ("ours", rows[OURS]))
        }
    for problem, spaces in (named(listed) if listed is not None else {}).items():
        for space, configurations in spaces.items():
            those = {f"{space} {at}": Kernel(space, each) for at, each in enumerate(configurations)}
            chosen.setdefault(problem, {}).update(those)
    knobs = [knob.name for knob in find_template(SHARING).knobs]
    for name, text, row in json.loads((folder / "plan.json").read_text()) if folder is not None else ():
        kernel = Kernel(SHARING, Configuration(tuple(zip(knobs, row, strict=True))), folder)
        chosen.setdefault(GemmProblem.parse(text), {})[name] = kernel
    return chosen


def launches(worker: Worker, problem: GemmProblem, kernels: Mapping[str, Kernel], store: Path) -> dict[str, Launch]:
    """The kernels of a problem, compiled and loaded; those that do not compile are left out."""
    built = {}
    for space in dict.fromkeys(each.space for each in kernels.values() if each.folder is None):
        template = find_template(space)
        those = [each.configuration for each in kernels.values() if each.space == space and each.folder is None]
        for configuration, artifact in compile_all(template, problem, DEVICES["h200"].arch, those, store):
            built[space, configuration] = make_job(template, configuration, artifact, problem, 0.0, CHAINS)
    found = {}
    for name, one in kernels.items():
        if one.folder is not None:
            row = list(one.configuration.values())
            found[name] = load_named(worker, find_template(one.space), problem, one.folder, name, row)
        elif (one.space, one.configuration) in built:
            found[name] = worker.load(built[one.space, one.configuration])
    return found


def sustained(bench: Bench, launches: Mapping[str, Launch], turns: int, seconds: float) -> dict[str, dict[str, Any]]:
    """The time of each launch while one follows another, and the card's clock and power meanwhile.

    The launches have turns of so many seconds, every other time the other way round. Told is the median of all turns.
    """
    seen: dict[str, list[tuple[float, list[Clocks]]]] = {name: [] for name in launches}
    for turn in range(turns):
        for name in list(launches)[:: -1 if turn % 2 else 1]:
            seen[name].append(_turn(bench, launches[name], seconds))
    return {name: _told(turns_of) for name, turns_of in seen.items()}


def _turn(bench: Bench, launch: Launch, seconds: float) -> tuple[float, list[Clocks]]:
    """The median time of a launch in the second half of some seconds, and what was seen of the card."""
    block = bench.make_block(launch)
    count = max(3, int(STRETCH_US / (bench.library_us * bench.launches)))
    times, clocks = list[float](), list[Clocks | None]()
    half = time.perf_counter() + seconds / 2
    while (now := time.perf_counter()) < half + seconds / 2:
        if now < half:
            times, clocks = [], []
        watch = partial(_note, clocks, bench.machine)
        times += bench.machine.times_us([block] * count, lost=1.0, meanwhile=watch)
    return float(np.nanmedian(times)) / bench.launches, [each for each in clocks if each is not None]


def _told(turns: Sequence[tuple[float, Sequence[Clocks]]]) -> dict[str, Any]:
    clocks = [each for _, seen in turns for each in seen]
    told = {name: median(getattr(each, name) for each in clocks) if clocks else None for name in ("sm_mhz", "power_w")}
    us = [one for one, _ in turns]
    return {"us": median(us), "turns_us": us, **told, "throttled": sorted({each.throttle for each in clocks})}


def _note(clocks: list[Clocks | None], machine: Machine) -> None:
    clocks.append(machine.clocks())


def counted(raw: str, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The counters of each launch, from the lines that `ncu` prints as CSV: kernels up to the next mark are one."""
    lines = raw[raw.index('"ID"') :].splitlines()
    rows = list(csv.DictReader(lines))[1:]  # the first line after the heading holds units
    found: dict[str, dict[str, float]] = {}
    waiting = iter(names)
    for row in rows:
        if MARK in row["Kernel Name"]:
            current = found.setdefault(next(waiting), {"kernels": 0.0})
            continue
        current["kernels"] += 1
        for name, value in row.items():
            if name in (*COUNTERS, *LAUNCHED):
                number, kept = float(value.replace(",", "")), current.get(name, 0.0)
                summed = name.endswith(".sum") or name == CYCLES
                current[name] = kept + number if summed else max(kept, number)
    return found


def profiled(arguments: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The counters of each of these launches, that this study makes again under `ncu`.

    Raises
    ------
    TilescoutError
        If `ncu` fails.
    """
    with TemporaryDirectory() as folder:
        report = str(Path(folder, "report"))
        command = [NCU, "--clock-control", "none", "--profile-from-start", "off"]
        command += ["--section", "LaunchStats", "--metrics", ",".join(COUNTERS)]
        again = module_command(PROGRAM.rpartition(" ")[2], "kernel-counters", *arguments, "--only-launch")
        _told_by([*command, "-f", "-o", report, *again])
        shown = ["--page", "raw", "--csv", "--print-units", "base"]
        return counted(_told_by([NCU, "--import", f"{report}.ncu-rep", *shown]), names)


def _told_by(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        last = f": {printable_line(lines[-1])}" if lines else ""
        raise TilescoutError(f"{NCU} ended with status {done.returncode}{last}; see what it prints when run by hand")
    return done.stdout


def launched(worker: Worker, problem: GemmProblem, kernels: Mapping[str, Kernel], store: Path) -> None:
    """Launch each kernel of a problem once for Nsight Compute, behind a mark and after a launch that nobody watches."""
    import torch

    workload = load_workload(find_template(OF).workload)
    case = Case.draw(workload, problem, torch.Generator(worker.machine.device))
    for launch in launches(worker, problem, kernels, store).values():
        launch(case.inputs, case.output)
        worker.machine.synchronize()
        torch.cuda.profiler.start()
        torch.cuda._sleep(1000)
        launch(case.inputs, case.output)
        worker.machine.synchronize()
        torch.cuda.profiler.stop()


def cells(one: Mapping[str, Any]) -> list[str]:
    """A row of the table of a problem: what NVML and `ncu` tell of a kernel."""
    alone, counters = one["sustained"], one.get("counters", {})
    found = [f"{alone['us']:.1f}"]
    found += ["" if alone[name] is None else f"{alone[name]:.0f}" for name in ("sm_mhz", "power_w")]
    for name, (_, unit, form) in COUNTERS.items():
        found.append(f"{counters[name] * unit:{form}}" if name in counters else "")
    return found


def print_counters(problems: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print a table for each problem, a row for each kernel."""
    console = Console(width=200)
    for text, found in problems.items():
        grid = Grid(
            title=f"{text}: in a chain µs, MHz and W; of one launch what Nsight Compute counts", title_justify="left"
        )
        grid.add_column("kernel")
        for heading in ("µs", "MHz", "W", *(heading for heading, _, _ in COUNTERS.values())):
            grid.add_column(heading, justify="right")
        for name, one in found.items():
            grid.add_row(name, *cells(one))
        console.print(grid)


@study(GPU_OR_RECORD, again=True)
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="A problem of the files; repeatable.")
@click.option("--listed", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="More kernels of ours.")
@click.option("--kernels", "folder", type=click.Path(path_type=Path, file_okay=False), help="A folder of more.")
@click.option("--only-launch", is_flag=True, hidden=True, help="Launch the kernels, for Nsight Compute.")
@device_option
@store_option
def main(
    run: Run,
    files: Sequence[Path],
    problems: Sequence[str],
    listed: Path | None,
    folder: Path | None,
    only_launch: bool,
    device: str,
    store: Path,
) -> None:
    """Count what kernels do, or print what was counted."""
    if run.record is not None:
        print_counters(run.record.result["problems"])
        return
    if not only_launch and shutil.which(NCU) is None:
        raise TilescoutError("Nsight Compute is missing: install it, or put the folder of `ncu` on the PATH")
    chosen = asked(files, problems, listed, folder)
    if not chosen:
        raise click.UsageError("no kernels are named: give --problem, --listed or --kernels, or a file with --again")
    worker, compiled = Worker(device), artifacts(store)
    if only_launch:
        for problem, kernels in chosen.items():
            launched(worker, problem, kernels, compiled)
        return
    found: dict[str, dict[str, Any]] = {}
    for problem, kernels in chosen.items():
        bench = worker.bench(find_template(OF).workload, str(problem), CHAINS, None)
        loaded = launches(worker, problem, kernels, compiled)
        errors = {name: bench.verify(launch, edge=False)[0] for name, launch in loaded.items()}
        found[str(problem)] = {
            name: {
                "space": kernels[name].space,
                "configuration": dict(kernels[name].configuration),
                "relative_error": errors[name],
                "sustained": alone,
            }
            for name, alone in sustained(bench, loaded, TURNS, SUSTAINED).items()
        }
        run.keep({"problems": found})
    arguments = [*map(str, files), "--device", device, "--store", str(store)]
    arguments += [word for problem in problems for word in ("--problem", problem)]
    arguments += ["--listed", str(listed)] if listed is not None else []
    arguments += ["--kernels", str(folder)] if folder is not None else []
    names = [f"{problem} {name}" for problem, those in found.items() for name in those]
    counters = profiled(arguments, names)
    for text, those in found.items():
        for name, one in those.items():
            one["counters"] = counters.get(f"{text} {name}", {})
    run.keep({"problems": found})
    print_counters(found)
