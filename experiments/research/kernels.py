"""Kernels of a table's configurations, compiled and loaded, and the bench of a problem that they run on."""

import math
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import Launch, load_launch
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.jobs import make_job, verified_scratch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import Objective, ProtocolOptions, block_launches
from tilescout.search.measure.worker import Worker
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template

CHAINS = ProtocolOptions(objective=Objective.CHAIN)
"""The protocol in chains, which the pages of results are of that are older than the choice of an objective."""
LIVE_CHAINS = LiveOptions(protocol=CHAINS)

HEATING_US = 2_000_000.0  # a card that has idled takes a second or two to reach its power cap
PAUSE_SECONDS = 0.03  # the longest pause between two measurements, as a search has them where it waits for compilers
BLOCK_US = 200.0  # of the library, where one launch is too short to be timed


def finalists(table: Table, problem: Problem, count: int) -> list[Configuration]:
    """The fastest configurations of a problem, and last its default."""
    rows = table.rows(problem)
    fastest = [table.configuration(int(row)) for row in rows[np.argsort(table.times_us[rows])[:count]]]
    default = table.card.baselines[problem].default
    return [*(configuration for configuration in fastest if configuration != default), default]


def compile_all(
    template: KernelTemplate, problem: Problem, arch: str, configurations: Sequence[Configuration], store: Path
) -> list[tuple[Configuration, Artifact]]:
    """Compile configurations on all cores; those that do not compile are left out."""
    with CompilePool(template, problem.signature, arch, ArtifactStore(store), CompileOptions()) as pool:
        pending = [(configuration, pool.submit(configuration)) for configuration in configurations]
        built = [(configuration, future.result()) for configuration, future in pending]
    return [(configuration, artifact) for configuration, artifact in built if isinstance(artifact, Artifact)]


def load_all(
    worker: Worker, bench: Bench, template: KernelTemplate, built: Sequence[tuple[Configuration, Artifact]]
) -> list[Launch]:
    """Load compiled configurations into this process, to be run on a bench."""
    return [
        worker.load(make_job(template, configuration, artifact, bench.problem, bench.library_us, bench.options))
        for configuration, artifact in built
    ]


def load_named(
    worker: Worker, template: KernelTemplate, problem: Problem, folder: Path, name: str, row: Sequence[Any]
) -> Launch:
    """Load a kernel of a folder that was compiled elsewhere: its file's name, and the values of its knobs."""
    path = folder / f"{Path(name).name}.so"
    configuration = dict(zip((knob.name for knob in template.knobs), row, strict=True))
    clusters = worker.machine.max_clusters(template.blocks_per_cluster(configuration))
    scratch = verified_scratch(template, configuration, problem)
    digest = sha256(path.read_bytes()).hexdigest()
    return load_launch(path, digest, template.name, template.workload, clusters, scratch)


def set_up(worker: Worker, table: Table, problem: Problem, good: int, store: Path) -> tuple[Bench, list[Launch]]:
    """A problem's bench, and its best recorded configurations and the default, compiled and loaded, to be run on it."""
    template = find_template(table.card.space)
    arch = find_device(worker.machine.name).arch
    built = compile_all(template, problem, arch, finalists(table, problem, good), store)
    bench = worker.bench(template.workload, str(problem), CHAINS, None)
    return bench, load_all(worker, bench, template, built)


def heat(bench: Bench, heating_us: float) -> None:
    """Run the library for so long."""
    launches = block_launches(bench.library_us, BLOCK_US, CHAINS)
    library = bench.make_block(bench.run_library, launches)
    heating = [library] * (1 + math.ceil(heating_us / (bench.library_us * launches)))
    bench.machine.times_us(heating, lost=1.0)
