"""The state of a campaign: the work that is left of each problem, the GPUs, and the choice of a GPU's next problem."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilescout.search.build.artifacts import Artifact
from tilescout.search.campaigns.finals import Final
from tilescout.spaces.problems import Problem


@dataclass
class Work:
    """The work that is left of one problem; configurations are named by their numbers in the plan.

    Attributes
    ----------
    number, problem
        The problem, and its number in the plan.
    left
        Rows that are still to be measured.
    library_us
        The library's steady time in µs; None until a GPU has set the problem up.
    preparing
        Whether a GPU is setting it up.
    incumbent
        The lowest ratio to the library so far, infinite if there is none.
    ready
        Configurations that are compiled and wait for a GPU.
    final
        The outcome of its races; None until they are over.
    racing
        Whether they are being run.
    """

    number: int
    problem: Problem
    left: int
    library_us: float | None = None
    preparing: bool = False
    incumbent: float = math.inf
    ready: deque[tuple[int, Artifact]] = field(default_factory=deque)
    final: Final | None = None
    racing: bool = False


@dataclass
class Lane:
    """The state of one GPU.

    Attributes
    ----------
    gpu
        Its number in the engine.
    work
        The problem that it is at, or was at last.
    in_flight
        Batches that it was given and has not answered; setting a problem up counts as one.
    racing
        Whether it runs races.
    lost
        Whether it failed for good.
    """

    gpu: int
    work: Work | None = None
    in_flight: int = 0
    racing: bool = False
    lost: bool = False


def next_work(lane: Lane, lanes: Sequence[Lane], works: Sequence[Work], least: int) -> Work | None:
    """The problem that a GPU measures next; None if none has enough that waits.

    A GPU stays with a problem while configurations wait for it. Else it takes a problem that the fewest other GPUs are
    at, and of these the one for which the most wait.

    Parameters
    ----------
    lane
        The GPU.
    lanes, works
        All GPUs, and all problems.
    least
        Configurations that must wait for another problem before the GPU turns to it.
    """
    if lane.work is not None and lane.work.ready and not lane.work.preparing:
        return lane.work
    open_to = [work for work in works if len(work.ready) >= least and not work.preparing]
    at_work = [other.work for other in lanes if other.in_flight and other is not lane]

    def rank(work: Work) -> tuple[int, int]:
        return -sum(other is work for other in at_work), len(work.ready)

    return max(open_to, key=rank, default=None)
