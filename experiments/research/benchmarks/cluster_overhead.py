"""Measure what a trial costs beyond its kernel, with the local engine and with Ray's.

    python -m tilescout.experiments.research cluster-overhead --problem 512x512x512:bf16

One compiled configuration is measured again and again, by itself and in batches. Printed is the wall-clock time of a
trial less the time that the measuring process spent on it. ``--template MODULE:ATTRIBUTE --device cpu`` takes kernels
for the host.
"""

import importlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.runner import Run, study
from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, LiveOptions, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.ray import RayEngine, RayOptions
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.devices import Device
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate

OPTIONS = LiveOptions(protocol=ProtocolOptions(pairs_us=2_000.0, heating_us=10_000.0))


@dataclass(frozen=True)
class Overhead:
    """Milliseconds a trial beyond measuring, medians: of trials by themselves, and of those in batches."""

    engine: str
    single_ms: float
    batch_ms: float


def overhead(name: str, engine: Engine, problem: Problem, trials: int, batch: int) -> Overhead:
    """Measure the default so many times by itself, and then in batches."""
    with engine:
        default = engine.template.default(problem, engine.device)
        artifact = engine.compile(default, problem.signature).result()
        assert isinstance(artifact, Artifact), artifact.error
        task = Task(default, artifact, problem, engine.prepare(0, problem).result())
        engine.measure(0, [task]).result()  # the problem is set up, and the kernel there

        def beyond(count: int, size: int) -> float:
            beyond = []
            for _ in range(count):
                started = time.perf_counter()
                measured = sum(each.gpu_seconds for each in engine.measure(0, [task] * size).result())
                beyond.append((time.perf_counter() - started - measured) / size * 1e3)
            return median(beyond)

        return Overhead(name, beyond(trials, 1), beyond(max(1, trials // batch), batch))


@study("a GPU or a host, the extra ray")
@click.option(
    "--template",
    "named",
    default="tilescout.spaces.gemm_sm90:TEMPLATE",
    show_default=True,
    metavar="MODULE:ATTRIBUTE",
    help="The template whose default is measured.",
)
@click.option("--problem", default="512x512x512:bf16", show_default=True, help="The problem of a trial.")
@click.option("--device", default="cuda", show_default=True, metavar="cuda|cpu", help="cpu for kernels of the host.")
@click.option("--cluster", default="auto", show_default=True, metavar="auto|ADDRESS", help="The Ray cluster.")
@click.option("--trials", default=200, show_default=True, help="Trials of each engine.")
@click.option("--batch", default=16, show_default=True, help="Trials of a batch.")
def main(run: Run, named: str, problem: str, device: str, cluster: str, trials: int, batch: int) -> None:
    """Measure the same configuration with both engines, and print what a trial costs."""
    module, attribute = named.split(":")
    found = importlib.import_module(module)
    template: KernelTemplate = getattr(found, attribute)
    host: Device | None = getattr(found, "HOST", None) if device == "cpu" else None
    parsed = template.parse(problem)
    with TemporaryDirectory() as folder:
        store = Path(folder)
        local = LocalEngine(template, store, [device], host, OPTIONS)
        rows = [overhead("local", local, parsed, trials, batch)]
        ray = RayEngine(template, store, RayOptions(cluster, 1, device), host, OPTIONS)
        rows.append(overhead("ray", ray, parsed, trials, batch))
    grid = Grid(title=f"ms a trial beyond measuring it, {parsed} on {device}")
    for heading in ("engine", "one at a time", f"batches of {batch}"):
        grid.add_column(heading)
    for row in rows:
        grid.add_row(row.engine, f"{row.single_ms:.2f}", f"{row.batch_ms:.2f}")
    Console().print(grid)
    run.keep([asdict(row) for row in rows])
