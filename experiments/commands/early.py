"""Begin what a tuning waits for the longest, before its command is imported: that takes half a second.

What measures has to import torch where no process stands by that has. The GPU's driver takes some tenths to start, here
and in the process that measures, and so does what that one loads into the GPU.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tilescout.search.build import early
from tilescout.search.build.standby import can_stand_by
from tilescout.search.engines.gpus import visible_gpus

_DRIVER = Path("/dev/nvidiactl")
"""Is there where Linux has NVIDIA's driver; to ask the driver itself takes its start."""

_NEEDLESS = {"--no-standby", "--cluster", "--table", "replay", "--device=replay", "-h", "--help"}
"""Arguments with which nothing is measured here, or by no process that stands by."""


def begin(arguments: Sequence[str]) -> None:
    """Have a process get ready to measure, and the driver start, where `tune` is going to want them.

    The arguments are only looked at: the command reads them later. A mistake costs a process that measures in vain.
    """
    if can_stand_by() and _DRIVER.exists() and _NEEDLESS.isdisjoint(arguments):
        early.begin(_first_device(arguments))
        threading.Thread(target=visible_gpus, name="driver").start()


def _first_device(arguments: Sequence[str]) -> str:
    """The GPU that is asked for; without one, the first."""
    given = [after for option, after in pairwise(arguments) if option == "--device"]
    given += [each.removeprefix("--device=") for each in arguments if each.startswith("--device=")]
    return given[-1] if given and given[-1].startswith("cuda:") else "cuda:0"
