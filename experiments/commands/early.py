"""Begin what a tuning waits for the longest, before its command is imported: that takes half a second.

What measures has to import torch where no process stands by that has. The GPU's driver takes some tenths to start.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from tilescout.search.build.standby import MEASURING, can_stand_by, wake
from tilescout.search.engines.gpus import visible_gpus

_DRIVER = Path("/dev/nvidiactl")
"""Is there where Linux has NVIDIA's driver; to ask the driver itself takes its start."""

_NEEDLESS = {"--no-standby", "--cluster", "--table", "replay", "--device=replay", "-h", "--help"}
"""Arguments with which nothing is measured here, or by no process that stands by."""


def begin(arguments: Sequence[str]) -> None:
    """Have a process get ready to measure, and the driver start, where `tune` is going to want them.

    The arguments are only looked at: the command reads them later. A mistake costs a process that stands by in vain.
    """
    if can_stand_by() and _DRIVER.exists() and _NEEDLESS.isdisjoint(arguments):
        threading.Thread(target=_begin, name="early").start()


def _begin() -> None:
    wake(MEASURING)
    visible_gpus()
