"""Helion's searches, run by Helion itself on a recorded table through its interface for kernels of others."""

import importlib.util
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilescout.experiments.compare.asking import LivePart, milliseconds
from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from helion.autotuner.benchmark_provider import BenchmarkProvider

STALE = 20_000
"""Successive configurations that were measured before, after which a search counts as stuck."""


class HelionSearch(Contender):
    """A search of Helion's, as `LFBOPatternSearch`, with Helion's defaults, answered from a table, or live.

    Helion knows no rules between knobs: it proposes any combination. A combination that the table lacks is answered by
    the nearest recorded configuration, as those of ordinary optuna samplers are. Trials are the configurations that are
    answered for the first time. Knobs of numbers are integers of Helion's, in the order of their values; others are
    enumerations. Knobs of one value are left out. Its default, which it tries first, is the first value of each knob.
    """

    @property
    def algorithm(self) -> str:
        """Its name among Helion's algorithms."""
        return self.name.removeprefix("helion.").split(":")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        return ("helion", "scikit-learn")

    @property
    def finalists(self) -> int:
        from helion.autotuner import base_search

        return int(
            getattr(base_search, "_FINAL_REBENCHMARK_TOP_K_DEFAULT", 1)
        )  # releases before 1.4 hand out the first

    def check(self) -> None:
        if importlib.util.find_spec("helion") is None:
            raise SamplerError(f"Helion is not here to run {self.name}: pip install 'tilescout[helion]'")
        from helion.autotuner import search_algorithms

        # Those with LLM in their names ask a language model, and a FiniteSearch goes through a list of the kernel's.
        known = sorted(name for name in search_algorithms if not name.startswith("LLM") and name != "FiniteSearch")
        if self.algorithm not in known:
            raise SamplerError(f"Helion has no search {self.algorithm!r}, it has {', '.join(known)}")
        if self.options:
            raise SamplerError(f"{self.name}: Helion's searches run with Helion's defaults, without options")

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        import torch
        from helion.autotuner import search_algorithms
        from helion.autotuner.external import _ExternalKernelAdapter, create_user_config_spec

        recording = engine.recording(problem)
        answers = _Answers(recording, trials)
        kernel = _ExternalKernelAdapter(
            create_user_config_spec(_tunables(recording.space)),
            answers.compiled,
            (),
            device=torch.device("cpu"),
            autotune_random_seed=seed % 2**31,
            autotune_log_level=logging.CRITICAL,
            autotune_progress_bar=False,
            autotune_accuracy_check=False,
        )
        search = search_algorithms[self.algorithm](kernel, ())
        search._benchmark_provider_cls = _provider(answers)  # which the searches' own constructors do not hand on
        search.final_rebenchmark_best = (
            answers.end
        )  # it launches the finalists: a table has no kernels, nor other times
        with suppress(_SpentError):
            search.autotune()
        return list(answers.tried)


class _SpentError(BaseException):
    """The search is over: what Helion catches of other errors it must not catch of this one."""


class _Answers:
    """Answers from the table to configurations of Helion's, and which of them were asked for.

    Attributes
    ----------
    tried
        The configurations in the order in which they were answered first, as indices of the space.
    """

    def __init__(self, recording: RecordedSpace | LivePart, trials: int) -> None:
        self._recording, self._trials, self._repeats = recording, trials, 0
        self._all = np.arange(len(recording.space))
        self.tried: dict[int, float] = {}

    def compiled(self, config: Any) -> "_Recorded":
        """The recorded kernel that stands for a configuration.

        Raises
        ------
        _SpentError
            If it would be one more than the budget allows.
        """
        space = self._recording.space
        codes = [int(config.get(knob.name, 0)) for knob in space.knobs]
        index = int(space.nearest(codes, self._all))
        if index in self.tried:
            self._repeats += 1
        elif len(self.tried) == self._trials:
            raise _SpentError
        else:
            self._repeats = 0
            self.tried[index] = milliseconds(self._recording, index)
        if self._repeats > STALE:
            raise _SpentError
        return _Recorded(self.tried[index])

    def end(self, *asked: object, **named: object) -> NoReturn:
        """End the search, which proposes nothing more.

        Raises
        ------
        _SpentError
            Always.
        """
        raise _SpentError


class _Recorded:
    """A kernel whose time is known: it is never launched."""

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def __call__(self, *arguments: object) -> None:
        """Nothing."""


def _tunables(space: SearchSpace) -> dict[str, Any]:
    from helion.autotuner.config_fragment import EnumFragment, IntegerFragment

    return {
        knob.name: EnumFragment(tuple(range(len(knob.values))))
        if isinstance(knob.values[0], str)
        else IntegerFragment(0, len(knob.values) - 1, 0)
        for knob in space.knobs
        if len(knob.values) > 1
    }


def _provider(answers: _Answers) -> "type[BenchmarkProvider]":
    from helion.autotuner.benchmark_provider import BenchmarkProvider, BenchmarkResult

    def result(config: Any, kernel: Any) -> BenchmarkResult:
        state = "ok" if kernel.milliseconds < float("inf") else "error"
        told = config, kernel, kernel.milliseconds, state, 0.0, time.perf_counter()
        return BenchmarkResult(*told[: len(BenchmarkResult._fields)])  # Helion 1.1 does not ask when it was done

    class Provider(BenchmarkProvider):  # type: ignore[misc]
        """Answers from the table in place of measuring."""

        def __init__(self, **given: Any) -> None:
            self.mutated_arg_indices: Sequence[int] = ()

        def setup(self) -> None: ...

        def cleanup(self) -> None: ...

        def benchmark(
            self, configs: list[Any], *, desc: str = "", raise_if_no_viable_config: bool = True
        ) -> list[BenchmarkResult]:
            return [result(config, answers.compiled(config)) for config in configs]

        def benchmark_isolated(self, fns: list[Any], **asked: Any) -> list[float | None]:
            return [fn.milliseconds for fn in fns]

    return Provider
