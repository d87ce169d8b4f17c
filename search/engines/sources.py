"""Where measurements come from: the GPU of this machine, or a recorded table."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.tables.table import Table, find_tables
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, TableError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template, template_names


def shipped_tables() -> list[Path]:
    """The tables that come with the package."""
    with as_file(files("tilescout.search.tables").joinpath("recorded")) as folder:
        return find_tables([folder]) if folder.is_dir() else []


def default_table(template: KernelTemplate, problem: Problem) -> Table:
    """The shipped table of a template that holds a problem.

    Raises
    ------
    TableError
        If there is none, with what there is.
    """
    held: list[str] = []
    for path in shipped_tables():
        table = Table.read(path)
        if table.card.space == template.name:
            if problem in table.problems:
                return table
            held += map(str, table.problems)
    if not held:
        raise TableError(f"no table of {template.name} is shipped; name one with --table, or measure on a GPU")
    raise TableError(f"no shipped table of {template.name} holds {problem}, held are {', '.join(held)}")


def template_of(table: Table) -> KernelTemplate:
    """What the rows of a table are configurations of: our template of that name, or one made from the table.

    The latter also if our template has other knobs by now: searches of the table can be compared as before.
    """
    from tilescout.search.tables.recorded_template import RecordedTemplate

    if table.card.space in template_names():
        template = find_template(table.card.space)
        if table.fits(template):
            return template
    return RecordedTemplate(table)


def named_template(space: str, table: Path | None) -> KernelTemplate:
    """The template of this name; if a table is named, one that is known by that table only will do.

    Raises
    ------
    SpaceError
        If there is none.
    TableError
        If the table can't be read.
    """
    if table is not None and space not in template_names():
        recorded = template_of(Table.read(table))
        if recorded.name == space:
            return recorded
    return find_template(space)


def largest_table(template: KernelTemplate) -> Table:
    """The shipped table of a template with the most rows.

    Raises
    ------
    TableError
        If there is none.
    """
    tables = [Table.read(path) for path in shipped_tables()]
    fitting = [table for table in tables if table.card.space == template.name]
    if not fitting:
        raise TableError(f"no table of {template.name} is shipped; name one with --table")
    return max(fitting, key=len)


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
