"""What a trial costs beyond its kernel, by the engine of this machine and by Ray's.

    python -m tilescout.experiments.research cluster-overhead --problem 512x512x512:bf16

Measures one compiled configuration again and again, by itself and in batches, and prints the wall-clock time of a trial
less what the measuring process spent on it. ``--template MODULE:ATTRIBUTE --gpu cpu`` takes kernels of the host.
"""

import argparse
import importlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table as Grid

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


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--template", default="tilescout.spaces.gemm_sm90:TEMPLATE", help="MODULE:ATTRIBUTE")
    parser.add_argument("--problem", default="512x512x512:bf16")
    parser.add_argument("--gpu", default="cuda", help="cuda, or cpu for kernels of the host")
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    module, attribute = arguments.template.split(":")
    found = importlib.import_module(module)
    template: KernelTemplate = getattr(found, attribute)
    device: Device | None = getattr(found, "HOST", None) if arguments.gpu == "cpu" else None
    problem = template.parse(arguments.problem)
    with TemporaryDirectory() as folder:
        store = Path(folder)
        local = LocalEngine(template, store, [arguments.gpu], device, OPTIONS)
        rows = [overhead("local", local, problem, arguments.trials, arguments.batch)]
        ray = RayEngine(template, store, RayOptions(arguments.cluster, 1, arguments.gpu), device, OPTIONS)
        rows.append(overhead("ray", ray, problem, arguments.trials, arguments.batch))
    grid = Grid(title=f"ms a trial beyond measuring it, {problem} on {arguments.gpu}")
    for heading in ("engine", "one at a time", f"batches of {arguments.batch}"):
        grid.add_column(heading)
    for row in rows:
        grid.add_row(row.engine, f"{row.single_ms:.2f}", f"{row.batch_ms:.2f}")
    Console().print(grid)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
