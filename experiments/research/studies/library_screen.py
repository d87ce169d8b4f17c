"""Screen cuBLASLt's algorithms for the problems of suites, so that a model may learn which are fast.

    python -m tilescout.experiments.research library-screen spread recorded --times times/

On each problem as many configurations are timed, roughly, as fit into --each seconds (see
`tilescout.experiments.research.screening`). The times are written to a file a problem, which `library-model` reads.
Which configurations are legal is asked by other processes, ahead of the device.
"""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np
from rich.console import Console

from tilescout.experiments.commands.options import Finite, seed_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.experiments.research.screening import Rows, Screen, screened
from tilescout.search.measure.machine import make_machine
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.processes import spawn_context
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload

SPACE = "cublaslt"


def legal(loader: str, problem: str) -> tuple[Rows, float]:
    """All configurations that the library says are legal, and the seconds of asking."""
    listed = load_loader(loader).listing(problem, None)
    return np.array(listed.rows, dtype=np.int32), listed.seconds


@study("a Hopper or Blackwell GPU")
@click.argument("suites", nargs=-1, required=True)
@click.option("--times", type=click.Path(path_type=Path), required=True, help="Folder for the times.")
@click.option("--each", type=Finite(min=0), default=1.0, show_default=True, help="Seconds of screening a problem.")
@seconds_option(150.0)
@click.option(
    "--listers", type=click.IntRange(min=0), default=8, show_default=True, help="Processes that ask; 0 for this one."
)
@device_option
@seed_option
def main(
    run: Run, suites: tuple[str, ...], times: Path, each: float, seconds: float, listers: int, device: str, seed: int
) -> None:
    """Time many of the library's algorithms, roughly, on each problem of SUITES."""
    console, clock = Console(width=160), Clock(seconds)
    template = find_template(SPACE)
    loader, workload, machine = load_loader(template.loader), load_workload(template.workload), make_machine(device)
    assert isinstance(loader, CublasLt)
    problems = [problem for suite in suites for problem in find_suite(suite).parsed(GemmProblem.parse)]
    report: dict[str, dict[str, float | str]] = {}
    pool = ProcessPoolExecutor(listers, spawn_context()) if listers else ThreadPoolExecutor(1)
    with pool:
        asked = [pool.submit(legal, template.loader, str(problem)) for problem in problems]
        for problem, future in zip(problems, asked, strict=True):
            if clock.left < 0:
                console.print(f"{seconds:g} s are over: not begun with {problem}", highlight=False)
                future.cancel()
                continue
            machine.release()  # the operands of the last problem
            try:
                rows, asking = future.result()
                found = screened(Screen(machine, workload, loader, problem, seed), problem, rows, each, seed)
            except (TilescoutError, RuntimeError) as error:  # torch raises the latter where memory is short
                one: dict[str, float | str] = {"error": one_line(error)}
            else:
                found.write(times)
                one = {"legal": len(rows), "asking_seconds": asking, "screened": len(found.us)}
                one |= {"best_us": float(np.nanmin(found.us)), "refused": int(np.isnan(found.us).sum())}
            report[str(problem)] = one
            run.keep(report)
            console.print(f"{clock.spent:4.0f} s {problem}: {one}", highlight=False, soft_wrap=True)
