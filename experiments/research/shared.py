"""What the study scripts share: kernels, figures of repeated measurements, a command line, and the way to MLflow."""

import gzip
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.research.studies.race_table import finalists
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import Launch
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import VERSION, ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import STORE, artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template


def spread_of(times: NDArray[np.float64]) -> dict[str, float]:
    """How well repeated measurements of several configurations agree.

    Parameters
    ----------
    times
        Of shape [rounds, configurations].

    Returns
    -------
    dict
        ``spread``: (largest - smallest) / median over the rounds, the median over the configurations.
        ``winner_within``: in what share of the rounds its fastest configuration is within 1 % of the one that is
        fastest by the mean of all rounds.
    """
    spread = (times.max(axis=0) - times.min(axis=0)) / np.median(times, axis=0)
    true = times.mean(axis=0)
    return {
        "spread": float(np.median(spread)),
        "winner_within": float((true[times.argmin(axis=1)] <= 1.01 * true.min()).mean()),
    }


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


def set_up(worker: Worker, table: Table, problem: Problem, good: int, store: Path) -> tuple[Bench, list[Launch]]:
    """A problem's bench, and its best recorded configurations and the default, compiled and loaded, to be run on it."""
    template = find_template(table.card.space)
    arch = find_device(worker.machine.name).arch
    built = compile_all(template, problem, arch, finalists(table, problem, good), store)
    bench = worker.bench(template.workload, str(problem), ProtocolOptions(), None)
    return bench, load_all(worker, bench, template, built)


def record_or_show(
    parser: ArgumentParser,
    study: Callable[[Worker, Table, Problem, Namespace], dict[str, Any]],
    show: Callable[[str, dict[str, Any], Namespace], None],
    arguments: Sequence[str] | None,
) -> None:
    """Command line of a script that records something of problems of a table, and prints figures then or later.

    Parameters
    ----------
    parser
        Has the options that are the script's own.
    study
        Records a problem, in a process that holds nothing of another.
    show
        Prints the figures of what was recorded of a problem.
    arguments
        The command line; None takes the process' own.
    """
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--problem", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=artifacts(STORE))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--again", type=Path, help="file whose figures to print, instead of measuring")
    parser.add_argument("--out", type=Path, help="where to write what was measured, as .json.gz")
    asked = parser.parse_args(arguments)
    if asked.again is not None:
        for text, found in json.loads(gzip.decompress(asked.again.read_bytes()))["problems"].items():
            show(text, found, asked)
        return
    if asked.table is None or asked.out is None or not asked.problem:
        parser.error("name a table, --problem and --out, or a file with --again")
    table = Table.read(asked.table)
    result: dict[str, Any] = {"protocol": VERSION, "problems": {}}
    for text in asked.problem:
        result["problems"][text] = study(Worker(asked.device), table, table.problem(text), asked)
        asked.out.write_bytes(gzip.compress(json.dumps(result).encode(), mtime=0))
        show(text, result["problems"][text], asked)


def log_study(uri: str, name: str, result: Mapping[str, Any]) -> None:
    """Log a study's figures to MLflow: a run with a metric for every number, the figures as a file, and a plot."""
    from tilescout.search.tracking.store import find_experiment, manners

    with manners():
        import mlflow

        client = mlflow.MlflowClient(uri)
        run = client.create_run(find_experiment(client, f"tilescout/{name}", None), run_name=name)
        for key, value in _numbers("", result):
            client.log_metric(run.info.run_id, key, value)
        client.log_dict(run.info.run_id, dict(result), "result.json")
        with TemporaryDirectory() as folder:
            path = Path(folder, "spread.png")
            _draw_spread(result, path)
            client.log_artifact(run.info.run_id, str(path))
        client.set_terminated(run.info.run_id)


def _numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{prefix}/{key}".strip("/").replace(":", "-").replace(",", ""), inner)
    elif isinstance(value, int | float):
        yield prefix, float(value)


def _draw_spread(result: Mapping[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    problems = result["problems"]
    names = list(next(iter(problems.values()))["spread"])
    for at, name in enumerate(names):
        heights = [100 * problem["spread"][name]["spread"] for problem in problems.values()]
        places = np.arange(len(problems)) + (at - len(names) / 2) * 0.8 / len(names)
        axes.bar(places, heights, width=0.8 / len(names), label=name, align="edge")
    axes.set_xticks(range(len(problems)), list(problems), rotation=15)
    axes.set_ylabel("spread over re-measurements, %")
    axes.set_title(f"{result['device']}: the same configurations measured again", loc="left")
    axes.legend()
    figure.savefig(path)
