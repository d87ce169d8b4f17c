"""Measure how soon kernels are compiled, by how many compilers run at the same time.

    python -m tilescout.experiments.research compile-rate --processes 8 --processes 16 --out rate.json

Compiles what a search asks for first, of both spaces of matrix products at once, and from an empty store: the default
and the kernels that are expected to be fastest. No GPU is used. More compilers make more kernels a second, up to the
number of cores; but each takes longer, as cores share caches and units, and a search waits for the first kernel. All
numbers of compilers take turns, in another order each time.
"""

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import Run, study
from tilescout.search.autotuning.shortlist import shortlist
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.cores import available_cores
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template

PROBLEM = "1705x3456x1152:bf16"
SPACES = ("gemm_sm90", "gemm_streamk_sm90")


@dataclass(frozen=True)
class Compiled:
    """Kernels that were compiled at the same time.

    Attributes
    ----------
    processes
        Compilers that ran at the same time.
    seconds
        From when all were asked for to when each was there, in the order in which they were asked for, of shape
        [kernels].
    core_seconds
        The seconds that each compiler took, likewise.
    """

    processes: int
    seconds: list[float]
    core_seconds: list[float]

    @property
    def rate(self) -> float:
        """Kernels a second."""
        return len(self.seconds) / max(self.seconds)


def compile_all(problem: str, kernels: int, processes: int) -> Compiled:
    """Compile so many kernels of both spaces, by turns, into an empty store, with compilers that are warm."""
    device = find_device("h200")
    with TemporaryDirectory() as folder, ExitStack() as stack:
        store, options = ArtifactStore(Path(folder)), CompileOptions(processes)
        asked, first = [], None
        for name in SPACES:
            template = find_template(name)
            parsed = template.parse(problem)
            pool = CompilePool(template, parsed.signature, device.arch, store, options, beside=first)
            first = first or pool
            stack.enter_context(pool)
            chosen = shortlist(template, parsed, device, kernels // len(SPACES) + 1)
            pool.submit(chosen.pop()).result()  # what the compiler is forked from is ready
            asked.append([(pool, each) for each in chosen])
        there: dict[int, float] = {}
        begun = time.monotonic()
        futures = [pool.submit(each) for pair in zip(*asked, strict=True) for pool, each in pair]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: there.update({number: time.monotonic() - begun}))
        outcomes = [future.result() for future in futures]
        while len(there) < len(futures):  # whoever waits for a future may go on before its callbacks are called
            time.sleep(0.001)
        return Compiled(
            processes, [there[number] for number in range(len(futures))], [each.compile_seconds for each in outcomes]
        )


@study("no GPU")
@click.option("--problem", default=PROBLEM, show_default=True, help="What the kernels compute.")
@click.option("--kernels", default=32, show_default=True, type=click.IntRange(min=2), help="Of both spaces together.")
@click.option(
    "--processes",
    multiple=True,
    type=click.IntRange(min=2),
    help="Compilers at a time; repeatable. [default: all cores, and parts]",
)
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Times that each is measured."
)
@seed_option
def main(run: Run, problem: str, kernels: int, processes: tuple[int, ...], repeats: int, seed: int) -> None:
    """Compile with every number of compilers, and print how soon kernels were there."""
    cores = available_cores()
    counts = processes or tuple(sorted({max(2, round(cores * part)) for part in (0.25, 0.5, 0.75, 1.0)}))
    rng, found = np.random.default_rng(seed), list[Compiled]()
    for _ in range(repeats):
        for count in rng.permutation(counts).tolist():
            found.append(compile_all(problem, kernels, count))
            run.keep({"cores": cores, "problem": problem, "compiled": [asdict(each) for each in found]})
    print(f"{problem}, {kernels} kernels, {cores} cores; medians of {repeats}")
    print("compilers   a second   first, s   first eight, s   all, s   seconds a kernel")
    for count in counts:
        runs = [each for each in found if each.processes == count]
        columns = [
            [each.rate, each.seconds[0], max(each.seconds[:8]), max(each.seconds), float(np.mean(each.core_seconds))]
            for each in runs
        ]
        rate, first, eight, last, each_s = np.median(columns, axis=0)
        print(f"{count:9}   {rate:8.1f}   {first:8.2f}   {eight:14.2f}   {last:6.2f}   {each_s:16.2f}")
