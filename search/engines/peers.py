"""Time what others would run for a problem, by an engine of another space's kernels."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
from tilescout.search.measure.library_best import Peer
from tilescout.search.measure.race import Estimate
from tilescout.spaces.errors import SpaceError, TilescoutError, one_line
from tilescout.spaces.peers import find_peer
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import check_several

PATIENCE = 150.0
"""Seconds that a kernel may take where peers are tuned: TorchInductor's Triton in e4m3 took up to 40 s."""


def patient_with(peers: Sequence[str], options: LiveOptions) -> LiveOptions:
    """The options of an engine that has the patience to tune these peers.

    Raises
    ------
    SpaceError
        If there is no such peer.
    """
    check_several(peers, "peers", SpaceError)
    for name in peers:
        find_peer(name)
    return replace(options, timeout=max(options.timeout, PATIENCE)) if peers else options


def timed_peer(engine: Engine, gpu: int, problem: Problem, library_us: float, name: str) -> tuple[Peer, Task | None]:
    """A peer, and the task of measuring it again; None, and why, if it does not work here.

    Its seconds are those of the first time: whoever measures keeps a kernel that was tuned, also for an engine beside.

    Raises
    ------
    SpaceError
        If there is no such peer.
    """
    template, started = find_peer(name), time.monotonic()
    try:
        if template.workload != engine.template.workload:
            raise CannotMeasureError(f"{name} does not compute what {engine.template.name} computes")
        template.check(problem)
        configuration = template.default(problem, engine.device)
        artifact = engine.describe(template, configuration, problem.signature)
        task = Task(configuration, artifact, problem, library_us, math.inf, template)
        [measured] = engine.measure(gpu, [task]).result()
    except TilescoutError as error:
        return Peer(name, time.monotonic() - started, error=one_line(error)), None
    timing, seconds = measured.timing, engine.tuned.setdefault((name, problem), time.monotonic() - started)
    if timing is None:
        return Peer(name, seconds, error=measured.error or str(measured.status)), None
    return Peer(name, seconds, Estimate.of(timing)), task
