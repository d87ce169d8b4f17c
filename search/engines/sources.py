"""Where measurements come from: the GPU of this machine, or a recorded table."""

from collections.abc import Sequence
from pathlib import Path

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate


def usable_gpus(template: KernelTemplate) -> Sequence[str]:
    """Product names of this machine's GPUs that the template builds for."""
    usable = []
    for product in visible_gpus():
        try:
            if find_device(product).arch in template.archs:
                usable.append(product)
        except DeviceError:
            continue
    return usable


def check_device(device: str) -> None:
    """Refuse what is no choice of a device.

    Raises
    ------
    DeviceError
        With the choices.
    """
    if device not in ("auto", "cuda", "replay") and not (device.startswith("cuda:") and device[5:].isdigit()):
        raise DeviceError(f"unknown device {device!r}, allowed are auto, cuda, cuda:N and replay")


def make_evaluator(
    template: KernelTemplate, problem: Problem, device: str, table: Path | None, artifacts: Path
) -> Evaluator:
    """What tries configurations.

    Parameters
    ----------
    template, problem
        What is tuned.
    device
        ``cuda`` or ``cuda:N`` measures on that GPU, ``replay`` answers from a table, and ``auto`` measures where there
        is a GPU for the template and no table was named.
    table
        The table to replay; None takes the shipped one.
    artifacts
        Where compiled kernels are kept.

    Raises
    ------
    DeviceError
        If a GPU was demanded and there is none.
    TableError
        If no table fits.
    """
    template.check(problem)
    if device == "auto":
        device = "cuda" if table is None and usable_gpus(template) else "replay"
    if device == "replay":
        from tilescout.search.engines.replay import ReplayEvaluator

        return ReplayEvaluator(Table.read(table) if table else default_table(template, problem), template, problem)
    if table is not None:
        raise DeviceError(f"--table is for replaying, --device {device} measures: leave one of them out")
    require_gpu()
    from tilescout.search.engines.live import LiveEvaluator

    return LiveEvaluator(template, problem, artifacts, device)


def require_gpu() -> None:
    """Refuse to go on where there is no GPU.

    Raises
    ------
    DeviceError
        If the driver shows none.
    """
    if not visible_gpus():
        raise DeviceError("no NVIDIA GPU here: measure on a machine with one, or use --device replay")
