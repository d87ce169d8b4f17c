"""`tilescout tune` as a session of a process that stands by: what it imports takes a second, and is there already."""

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from tilescout.search.build.programs import program, run_ready
from tilescout.search.build.standby import PACKAGES, Do, Standby, can_stand_by, wake
from tilescout.spaces.errors import ModelError
from tilescout.spaces.processes import hide_secrets

TUNING = Standby("tilescout.experiments.commands.standing:ready_to_tune", packages=(*PACKAGES, "experiments"))
"""A process that has imported and read what `tilescout tune` does."""

_IMPORTED = (
    *("tilescout.experiments.commands.tune", "tilescout.experiments.commands.printing"),
    *("tilescout.experiments.commands.tune_suite", "tilescout.search.engines.local"),
    *("tilescout.search.engines.replay", "tilescout.search.samplers.guided.sampler"),
    *("tilescout.search.samplers.ordinary", "tilescout.search.tracking.result", "tilescout.search.tracking.server"),
    *("tilescout.search.tracking.standing.logger", "tilescout.search.tuning.suite", "tilescout.spaces.gemm_suites"),
    *("tilescout.spaces.gemm_sm90.template", "tilescout.spaces.gemm_streamk_sm90.template"),
    *("importlib.resources.readers", "packaging.specifiers", "pandas", "pyarrow.compute", "pyarrow.parquet"),
    "threadpoolctl",
)
"""Modules that a tuning imports, the command and those that are imported when they are first used."""


def run(arguments: Sequence[str], heeds: bool) -> int | None:
    """Run the command line in a process that stands by, where it is a tuning; see `run_ready`.

    Parameters
    ----------
    arguments
        Of this process, its name the first.
    heeds
        Whether Ctrl-C is heeded.
    """
    if not _is_wanted(arguments):
        return None
    hide_secrets()
    return run_ready(TUNING, arguments, heeds)


def wake_for_next(arguments: Sequence[str]) -> None:
    """Have a process stand by for the next tuning, where these are the arguments of one."""
    if _is_wanted(arguments) and can_stand_by():
        wake(TUNING)


def _is_wanted(arguments: Sequence[str]) -> bool:
    return list(arguments[1:2]) == ["tune"] and "--no-standby" not in arguments


def get_ready() -> None:
    """Import what a tuning does, and read the cost models that come with the package."""
    for module in _IMPORTED:
        import_module(module)
    from tilescout.costmodel.persistence import load_model
    from tilescout.costmodel.shipped import shipped_folder
    from tilescout.search.measure.race import import_ahead

    import_ahead()
    for path in sorted(shipped_folder().glob("*.npz")):
        with suppress(ModelError):  # whoever searches with it is told
            load_model(path)  # it is kept as long as the file stays what it is


def ready_to_tune() -> Do:
    """Get ready to stand by for the command line."""
    from tilescout.experiments.commands import cli

    get_ready()
    return program(cli.main)
