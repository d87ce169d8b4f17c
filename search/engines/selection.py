"""Which engine compiles and measures: this machine's GPUs, a Ray cluster, or a recorded table."""

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from tilescout.search.build.compilers import standby_of
from tilescout.search.build.standby import MEASURING, can_stand_by, wake
from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.measure.protocol import Objective, find_objective
from tilescout.search.tables.shipped import default_table, table_file
from tilescout.search.tables.table import Table
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, ProblemError, SpaceError, TableError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.trust import named_folder

_MOST_GPUS = 10_000  # for each there are some entries in memory: a slip of the hand would fill it


def make_engine(
    template: KernelTemplate,
    problem: Problem,
    artifacts: Path,
    *,
    device: str = "auto",
    cluster: str | None = None,
    gpus: int | None = None,
    table: Path | None = None,
    options: LiveOptions | None = None,
    objective: Objective | str | None = None,
) -> Engine:
    """Choose and open an engine.

    Parameters
    ----------
    template, problem
        The kernel and the problem. A shipped table is chosen by the problem.
    artifacts
        Folder of compiled kernels.
    device
        ``cuda`` takes this machine's GPUs that the template builds for, ``cuda:N`` that one, ``replay`` a table, and
        ``auto`` the GPUs where there are some for the template and no table was named.
    cluster
        Address of a Ray cluster, which then has the GPUs, or ``auto``; None measures here.
    gpus
        GPUs to use at most; None takes all. A replay simulates so many, without a number one.
    table
        The table to replay; None takes the shipped one.
    options
        How it is compiled and measured.
    objective
        What runs around a kernel while it is timed: ``chain`` or ``sandwich``. None takes that of the options where
        something is measured, and the table's where one is replayed.

    Raises
    ------
    DeviceError
        If there is no such GPU, cluster or objective, or the arguments contradict each other.
    ProblemError
        If the template can't compute the problem.
    TableError
        If no table fits, or it was recorded by another objective than the one asked for.
    """
    check_device(device)
    check_kinds(SpaceError, template=(template, KernelTemplate))
    check_kinds(ProblemError, problem=(problem, Problem))
    check_kinds(DeviceError, cluster=(cluster, str | None), options=(options, LiveOptions | None))
    artifacts, table = named_folder(artifacts, "folder `artifacts`"), table_file(table)
    asked_gpus: Any = gpus  # a number that is not whole is refused, too
    is_number = isinstance(asked_gpus, Integral) and not isinstance(asked_gpus, bool)
    if gpus is not None and not (is_number and 1 <= int(gpus) <= _MOST_GPUS):
        raise DeviceError(f"can't use {gpus!r} GPUs: `gpus` is 1 to {_MOST_GPUS:,}, or None for all")
    if gpus is not None and gpus > 1 and device.startswith("cuda:"):
        raise DeviceError(f"`device='{device}'` is one GPU, and `gpus` asks for {gpus}: leave one of them out")
    asked = find_objective(objective) if objective is not None else None
    template.check(problem)
    if asked is not None:
        options = options or LiveOptions()
        options = replace(options, protocol=replace(options.protocol, objective=asked))
    if cluster is not None:
        if device not in ("auto", "cuda") or table is not None:
            raise DeviceError("`cluster` measures on the GPUs of a Ray cluster: leave `device` and `table` out")
        from tilescout.search.engines.ray import RayEngine, RayOptions

        return RayEngine(template, artifacts, RayOptions(cluster, gpus), options=options)
    if replays(template, device, table):
        from tilescout.search.engines.replay import ReplayEngine

        found = Table.read(table, {template.name: template}) if table else default_table(template, problem)
        check_objective(found, asked)
        return ReplayEngine(found, template, gpus or 1)
    if table is not None:
        raise DeviceError(f"`table` is for replaying, `device='{device}'` measures: leave one of them out")
    require_gpu()
    from tilescout.search.engines.local import LocalEngine

    all_gpus = [f"cuda:{number}" for number in range(len(visible_gpus()))]
    if device.startswith("cuda:") and device not in all_gpus:
        raise DeviceError(f"there is no {device} here, there are {', '.join(all_gpus)}")
    chosen = [device] if device.startswith("cuda:") else list(usable_gpus(template) or all_gpus)[:gpus]
    return LocalEngine(template, artifacts, chosen, options=options)


def replays(template: KernelTemplate, device: str, table: Path | None) -> bool:
    """Whether `make_engine` replays a table where no cluster measures; see there."""
    return device == "replay" or (device == "auto" and (table is not None or not usable_gpus(template)))


def check_objective(table: Table, objective: Objective | None) -> None:
    """Check that a table was recorded by an objective; None takes any.

    Raises
    ------
    TableError
        If it was not.
    """
    held = table.card.objective
    if objective is not None and held is not objective:
        raise TableError(
            f"table {table.path} holds times by the objective {held}, asked for is {objective}: ask for {held}, or "
            "measure on a GPU"
        )


def check_device(device: str) -> None:
    """Check that a device can be chosen by this name.

    Raises
    ------
    DeviceError
        If not, with the choices.
    """
    check_kinds(DeviceError, device=(device, str))
    if device not in ("auto", "cuda", "replay") and not re.fullmatch("cuda:[0-9]{1,9}", device):
        raise DeviceError(f"unknown device {device!r}, allowed are auto, cuda, cuda:N and replay")


def usable_gpus(template: KernelTemplate) -> Sequence[str]:
    """Names of this machine's GPUs that the template builds for, as ``cuda:N``."""
    usable = []
    for number, product in enumerate(visible_gpus()):
        try:
            if find_device(product).arch in template.archs:
                usable.append(f"cuda:{number}")
        except DeviceError:
            continue
    return usable


def require_gpu() -> None:
    """Check that this machine has a GPU.

    Raises
    ------
    DeviceError
        If the driver shows none.
    """
    if not visible_gpus():
        raise DeviceError("no NVIDIA GPU here: measure on a machine with one, or replay a table with `device='replay'`")


def get_ready(device: str, standing: KernelTemplate | None = None) -> None:
    """Have what measures and what compiles begin to import, where none stand by yet: a search waits the longest for it.

    Nothing is waited for. The driver of the GPU starts meanwhile, too: 0.2 s of whoever asks it first.

    Parameters
    ----------
    device
        See `make_engine`.
    standing
        What is tuned, if processes may stand by for it.
    """

    def start() -> None:
        if visible_gpus() and standing is not None and can_stand_by():
            wake(MEASURING)
            if len(standing.archs) == 1 and (compilers := standby_of(standing, standing.archs[0])) is not None:
                wake(compilers)

    if device != "replay":
        threading.Thread(target=start, name="driver").start()
