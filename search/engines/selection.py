"""Who compiles and measures for a command: this machine's GPUs, a Ray cluster, or a recorded table."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.engines.sources import check_device, make_evaluator, require_gpu, usable_gpus
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate


@contextmanager
def opened_evaluator(
    template: KernelTemplate,
    problem: Problem,
    device: str,
    cluster: str | None,
    gpus: int | None,
    table: Path | None,
    artifacts: Path,
) -> Iterator[Evaluator]:
    """What tries configurations of one problem, on one GPU here or on those that are asked for; closed at the end.

    The arguments and errors are those of `make_engine`.
    """
    if cluster is None and gpus is None:
        with make_evaluator(template, problem, device, table, artifacts) as evaluator:
            yield evaluator
        return
    from tilescout.search.engines.live import EngineEvaluator

    with (
        make_engine(template, problem, device, cluster, gpus, table, artifacts, LiveOptions()) as engine,
        EngineEvaluator(engine, problem) as evaluator,
    ):
        yield evaluator


def make_engine(
    template: KernelTemplate,
    problem: Problem,
    device: str,
    cluster: str | None,
    gpus: int | None,
    table: Path | None,
    artifacts: Path,
    options: LiveOptions,
) -> Engine:
    """The engine for what is asked.

    Parameters
    ----------
    template, problem
        What is measured; the problem tells which of the shipped tables is replayed.
    device
        ``cuda`` takes all GPUs of this machine, ``cuda:N`` that one, ``replay`` a table, and ``auto`` the GPUs where
        there are some for the template and no table was named.
    cluster
        Address of a Ray cluster, which then has the GPUs, or ``auto``; None measures here.
    gpus
        How many GPUs to use at most; None takes all.
    table
        The table to replay; None takes the shipped one.
    artifacts
        Where compiled kernels are kept.
    options
        How it is measured.

    Raises
    ------
    DeviceError
        If there is no such GPU or cluster, or the arguments contradict each other.
    TableError
        If no table fits.
    """
    check_device(device)
    if cluster is not None:
        if device not in ("auto", "cuda") or table is not None:
            raise DeviceError("--cluster measures on the GPUs of a Ray cluster: leave --device and --table out")
        from tilescout.search.engines.ray import RayEngine, RayOptions

        return RayEngine(template, artifacts, RayOptions(cluster, gpus), options=options)
    if device == "auto":
        device = "cuda" if table is None and usable_gpus(template) else "replay"
    if device == "replay":
        from tilescout.search.engines.replay_engine import ReplayEngine

        return ReplayEngine(Table.read(table) if table else default_table(template, problem), template, gpus or 1)
    if table is not None:
        raise DeviceError(f"--table is for replaying, --device {device} measures: leave one of them out")
    require_gpu()
    from tilescout.search.engines.local import LocalEngine

    found = [f"cuda:{number}" for number in range(len(visible_gpus()))]
    return LocalEngine(template, artifacts, found[:gpus] if device == "cuda" else [device], options=options)
