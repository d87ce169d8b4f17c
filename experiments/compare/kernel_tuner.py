"""Kernel Tuner's strategies, run by Kernel Tuner itself in its simulation mode."""

import contextlib
import importlib.util
import io
import json
import logging
import random
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.tables.kernel_tuner import cache_of, key_of
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.spaces.errors import SamplerError, one_line
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

STALE = 20_000
"""Successive evaluations of configurations that were tried before, after which a strategy counts as stuck. Kernel
Tuner's budget counts only new ones, so a population that has converged would go on for ever."""


class KernelTunerStrategy(Contender):
    """A strategy of Kernel Tuner, on a cache file with what the table holds; live, its results are measured instead.

    It may propose every configuration of the table, also those that failed: it has to find out which fail, as every
    strategy has. Its trials are the configurations that it evaluates for the first time. Its options are those that
    Kernel Tuner documents, with Kernel Tuner's defaults.

    Searches follow from the seed, but for those of ``bayes_opt`` (Kernel Tuner 1.5). It draws a Latin hypercube from a
    generator of SciPy that takes no seed, of which what is legal comes first; ``samplingmethod=random`` leaves it out.
    With its default method it fits its model anew when the last evaluation took long beside the last fit, by the clock,
    and in a simulation none does.
    """

    @property
    def strategy(self) -> str:
        """Its name among Kernel Tuner's strategies."""
        return self.name.removeprefix("kernel_tuner.").split(":")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        return ("kernel_tuner",)

    def check(self) -> None:
        if importlib.util.find_spec("kernel_tuner") is None:
            raise SamplerError(f"Kernel Tuner is not here to run {self.name}: pip install 'tilescout[kernel-tuner]'")
        from kernel_tuner.interface import strategy_map

        if self.strategy not in strategy_map:
            raise SamplerError(
                f"Kernel Tuner has no strategy {self.strategy!r}, it has {', '.join(sorted(strategy_map))}"
            )
        # Some need a package that Kernel Tuner does not, or several objectives, or take no budget; some lack an option.
        states = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            self._search(_rehearsal(), 3, 0)
        except Exception as error:
            raise SamplerError(f"{self.name} can't be run: {one_line(f'{type(error).__name__}: {error}')}") from error
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        found = engine.recording(problem)
        cache = _cache(found) if isinstance(found, RecordedSpace) else _unmeasured(found.space)
        index_of = {key: index for index, key in enumerate(cache["cache"])}
        live = None if isinstance(found, RecordedSpace) else lambda key: _result(found.measurement(index_of[key]))
        return [index_of[key] for key in self._search(cache, trials, seed, live)]

    def _search(
        self, cache: Mapping[str, Any], trials: int, seed: int, live: Callable[[str], dict[str, Any]] | None = None
    ) -> Iterable[str]:
        """The keys of a cache that are tried, in their order; see `_Recorded`."""
        from kernel_tuner import tune_kernel
        from kernel_tuner.interface import strategy_map

        recorded = _Recorded(strategy_map[self.strategy], trials, live)
        random.seed(seed)  # Kernel Tuner draws from the global generators; this process is only ours
        np.random.seed(seed)  # noqa: NPY002
        with TemporaryDirectory(prefix="tilescout-") as folder, _quiet():
            path = Path(folder, "cache.json")
            path.write_text(json.dumps(cache))
            with contextlib.suppress(recorded.stop()):  # some strategies let the end of the budget through
                tune_kernel(
                    cache["kernel_name"],
                    "",
                    cache["problem_size"],
                    [],
                    cache["tune_params"],
                    restrictions=[listed(cache)],
                    strategy=recorded,
                    strategy_options={"max_fevals": trials, **{k: _number(v) for k, v in self.options.items()}},
                    cache=str(path),
                    simulation_mode=True,
                    quiet=True,
                )
        return recorded.tried


def listed(cache: Mapping[str, Any]) -> Any:
    """A restriction, as Kernel Tuner takes them, to the configurations of a cache.

    It refuses a configuration as soon as no entry begins like it, in whatever order values are chosen: a plain function
    would be asked for every combination of all values (20,000 of a grid of 10 million: 2 s against 12 s).
    """
    from constraint import Constraint

    names = list(cache["tune_params_keys"])
    legal = [tuple(entry[name] for name in names) for entry in cache["cache"].values()]
    begun: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}

    class Listed(Constraint):  # type: ignore[misc]
        def __deepcopy__(self, memo: Any) -> "Listed":
            return self  # nothing in it changes

        def __call__(self, variables: Any, domains: Any, assignments: Mapping[str, Any], *_: Any, **__: Any) -> bool:
            known = tuple(name for name in names if name in assignments)
            if known not in begun:
                places = [names.index(name) for name in known]
                begun[known] = {tuple(values[place] for place in places) for values in legal}
            return tuple(assignments[name] for name in known) in begun[known]

    return Listed()


@lru_cache(maxsize=4)
def _cache(recording: RecordedSpace) -> dict[str, Any]:
    """The table's entries as a cache of Kernel Tuner, in the order of the recorded space.

    It has no names of the table's: Kernel Tuner evaluates a size that is text as an expression.
    """
    answers = cache_of(recording.table, recording.problem, recording.rows.tolist())
    return {**answers, "kernel_name": "recorded", "problem_size": [1]}


def _rehearsal() -> dict[str, Any]:
    """A small cache of nobody's, on which it shows whether a strategy can be run at all."""
    parameters = {"x": [1, 2, 4, 8, 16], "y": [1, 2, 3, 4]}
    listed = [{"x": x, "y": y, "time": float(x + y)} for x in parameters["x"] for y in parameters["y"]]
    return {
        "device_name": "none",
        "kernel_name": "rehearsal",
        "problem_size": [1],
        "tune_params_keys": list(parameters),
        "tune_params": parameters,
        "objective": "time",
        "cache": {key_of((one["x"], one["y"])): one for one in listed},
    }


def _unmeasured(space: SearchSpace) -> dict[str, Any]:
    """A cache with all of a space and no times; they are measured when the strategy asks for them."""
    names = [knob.name for knob in space.knobs]
    entries = {key_of(one.values()): {**one, "time": 0.0} for one in (space[index] for index in range(len(space)))}
    return {
        "device_name": space.device.name,
        "kernel_name": "measured",
        "problem_size": [1],
        "tune_params_keys": names,
        "tune_params": {knob.name: list(knob.values) for knob in space.knobs},
        "objective": "time",
        "cache": entries,
    }


def _result(measurement: Measurement) -> dict[str, Any]:
    """A measurement as Kernel Tuner takes it; of what was given up early, the time of its one launch."""
    from kernel_tuner.util import RuntimeFailedConfig

    if measurement.timing is not None:
        return {"time": measurement.time_us / 1e3}
    if measurement.status is Status.PRUNED and measurement.pilot_us is not None:
        return {"time": measurement.pilot_us / 1e3}
    failed = RuntimeFailedConfig()
    return {"time": failed, "__error__": failed}


class _Recorded:
    """A strategy of the user's own, as Kernel Tuner takes it, that runs one of its own and notes what it tries.

    Parameters
    ----------
    strategy
        The strategy of Kernel Tuner's.
    trials
        Most configurations.
    live
        Measures the configuration of a key; None where the cache has the times.
    """

    def __init__(self, strategy: Any, trials: int, live: Callable[[str], dict[str, Any]] | None = None) -> None:
        self._strategy = strategy
        self._trials = trials
        self._live = live
        self._repeats = 0
        self.tried: dict[str, None] = {}  # in the order in which they were tried first

    @staticmethod
    def stop() -> type[Exception]:
        """The exception that Kernel Tuner raises at the end of a budget."""
        from kernel_tuner.util import StopCriterionReached

        stop: type[Exception] = StopCriterionReached
        return stop

    def tune(self, searchspace: Any, runner: Any, tuning_options: Any) -> Any:
        """Search; called by Kernel Tuner."""
        evaluate = runner.run

        def run(configurations: Iterable[Any], options: Any) -> Any:
            asked = list(configurations)
            results = evaluate(asked, options)
            for values, result in zip(asked, results, strict=True):
                if result is not None:
                    self._note(key_of(values))
                    result |= {} if self._live is None else self._live(key_of(values))
            if self._repeats > STALE:
                raise self.stop()(f"{STALE} evaluations without a new configuration")
            return results

        runner.run = run
        return self._strategy.tune(searchspace, runner, tuning_options)

    def _note(self, key: str) -> None:
        self._repeats += 1
        if key not in self.tried and len(self.tried) < self._trials:
            self.tried[key] = None
            self._repeats = 0


@contextlib.contextmanager
def _quiet() -> Any:
    handlers = logging.root.handlers[:]
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:  # its calls of `logging.debug` make a handler, which would show each warning of ours once more
            logging.root.handlers[:] = handlers


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
