"""Times of steps of a model: queued one after the other, and as CUDA graphs, those of several contenders in turns.

And whether what a graph computes is what a call computes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from tilescout.experiments.research.clients import Step

ROUNDS = 30
_STEPS = 5  # that are timed together
_REPLAYS = 50  # of a step, whose results are compared with that of its call


def one_by_one(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Times in µs of each, and its ratios to the default's median: no two were measured in the same round."""
    default = median(times["default"])
    found = {}
    for name, taken in times.items():
        low, _, high = (each / default for each in quantiles(taken, n=4))
        found[name] = {"us": median(taken), "ratio": median(taken) / default, "quartiles": [low, high]}
    return found


def from_the_prompt(
    running: "Mapping[str, Step]", timed: "Callable[[Step], Callable[[], float]]"
) -> "dict[str, Callable[[], float]]":
    """Timed runs of each step, as if the prompt had just been read: a graph does not mind the end of the cache."""
    for step in running.values():
        step.restart()
    return {name: timed(step) for name, step in running.items()}


def in_graphs(capture: "Callable[[], Mapping[str, Callable[[], float]]]") -> dict[str, Any]:
    """The times of contenders in turns, each in a graph; why there are none of a step that can't be captured."""
    try:
        return {"graph": in_turns(capture())}
    except RuntimeError as error:  # as one that trains
        return {"no graph": str(error).splitlines()[0]}


def called(step: Any, steps: int = _STEPS) -> "Callable[[], float]":
    """A function that queues some steps, and returns the time of one by the clock on the wall, in µs."""
    import torch

    def run() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / steps * 1e6

    return run


def captured(step: Any, steps: int) -> "tuple[torch.cuda.CUDAGraph, torch.Tensor]":
    """A CUDA graph of some steps, and the result of the last, which each replay writes."""
    import torch

    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        for _ in range(steps):
            result = step()
    return graph, result


def graph_of(step: Any, steps: int = _STEPS) -> "Callable[[], float]":
    """A function that replays a CUDA graph of some steps and returns the time of one, in µs."""
    import torch

    graph, _ = captured(step, steps)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / steps * 1e3

    return run


def in_turns(running: "Mapping[str, Callable[[], float]]") -> dict[str, Any]:
    """Times in µs of each, and its ratios to the default's of the same round."""
    generator, names = np.random.default_rng(0), list(running)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, ROUNDS):
        for at in generator.permutation(len(names)):
            taken = running[names[at]]()
            if turn >= 0:
                times[names[at]].append(taken)
    found = {}
    for name in names:
        ratios = [mine / default for mine, default in zip(times[name], times["default"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        found[name] = {"us": median(times[name]), "ratio": median(ratios), "quartiles": [low, high]}
    return found


def replayed(step: "Step") -> float:
    """The largest difference of a step's replays as a CUDA graph from its call, each time behind the prompt.

    Kernels that begin before the last one ends, or on streams of their own, must not read what is not there yet.
    """
    step.restart()
    expected = step().clone()
    graph, result = captured(step, 1)
    found = []
    for _ in range(_REPLAYS):
        step.restart()
        graph.replay()
        found.append(difference(result, expected))
    return float(np.max(found))  # of a result that is no number, too


def difference(one: "torch.Tensor", other: "torch.Tensor") -> float:
    """The norm of the difference, over that of the other."""
    return float((one.float() - other.float()).norm() / other.float().norm())
