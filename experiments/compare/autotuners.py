"""The autotuners of two kernel libraries, run by their own code: Quack's and FlashInfer's.

Both measure a list and keep its fastest entry. How they go through it, what they do with a kernel that fails, at which
size they measure and what they choose is their code; how long an entry takes is answered from a table, or live. An
entry stands for the nearest configuration of the space, see `rankings.places`.
"""

import io
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilescout.experiments.compare import flashinfer, quack
from tilescout.experiments.compare.asking import milliseconds
from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.experiments.compare.rankings import Wish, places
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from flashinfer.autotuner import TunableRunner

Time = Callable[[int], float]
"""Milliseconds of a configuration, by its index in the space; infinite if it does not run."""


class Autotuner(Contender):
    """The base of the two. They have no options and draw nothing at random."""

    module: str
    distribution: str

    @property
    def deterministic(self) -> bool:
        return True

    @property
    def packages(self) -> tuple[str, ...]:
        return (self.distribution,)

    def check(self) -> None:
        if self.name.split(":")[0] != self.module or self.options:
            raise SamplerError(f"unknown contender {self.name!r}; did you mean {self.module}? It has no options")
        try:
            with redirect_stderr(io.StringIO()):
                import_module(self.module)
        except ImportError as error:
            packages = f"{self.distribution} triton"
            raise SamplerError(f"{self.name} can't be run here ({error}): pip install {packages}") from error

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        recording = engine.recording(problem)
        space, default = recording.space, recording.default
        entries = [int(places(space, default, [wish])[0]) for wish in self.wishes(space, default)[:trials]]
        tried: list[int] = []

        def time(index: int) -> float:
            tried.append(index)
            return milliseconds(recording, index)

        with redirect_stderr(io.StringIO()):  # their progress
            self.tune(entries, time, problem.m if isinstance(problem, GemmProblem) else 1)
        return list(dict.fromkeys(tried))

    @abstractmethod
    def wishes(self, space: SearchSpace, default: Configuration) -> Sequence[Wish]:
        """The list, in the order in which it is measured."""

    @abstractmethod
    def tune(self, entries: Sequence[int], time: Time, rows: int) -> int | None:
        """The configuration that the library's code chooses for a product of so many rows; None if none runs."""


class QuackAutotuner(Autotuner):
    """``quack.autotuner``, with the configurations that Quack lists for Hopper."""

    module, distribution = "quack.autotuner", "quack-kernels"

    def wishes(self, space: SearchSpace, default: Configuration) -> Sequence[Wish]:
        from quack.gemm_config import get_all_configs

        found = [
            quack.wish((each.tile_m, each.tile_n), each.pingpong, (each.cluster_m, each.cluster_n), each.swap_ab)
            for each in get_all_configs()
            if each.device_capacity == 9
        ]
        return [{name: value for name, value in wish.items() if name in default} for wish in found]

    def tune(self, entries: Sequence[int], time: Time, rows: int) -> int | None:
        from quack import autotuner

        launched: list[int] = []

        def kernel(place: int) -> None:
            launched.append(entries[place])

        def bench(launch: Callable[[], None], quantiles: Sequence[float]) -> list[float]:
            launch()
            return [time(launched[-1])] * len(quantiles)

        configs = [autotuner.AutotuneConfig(place=place) for place in range(len(entries))]
        tuner = autotuner.Autotuner(kernel, [], configs, do_bench=bench)
        warm_up = autotuner._gpu_warmup
        autotuner._gpu_warmup = lambda: None  # whoever measures sees to the state of the GPU
        try:
            tuner()
        finally:
            autotuner._gpu_warmup = warm_up
        best = tuner.best_config
        return entries[best.kwargs["place"]] if tuner.configs_timings[best][0] < float("inf") else None


class FlashInferAutotuner(Autotuner):
    """``flashinfer.autotuner``, with the list of its CUTLASS kernels, and its buckets of sizes.

    Of the buckets the one of the problem is measured. A table that is replayed has the problem alone, so that it is
    measured there, at its own size, where the bucket costs nothing. Live it is `flashinfer.bucket`.
    """

    module, distribution = "flashinfer.autotuner", "flashinfer-python"

    def wishes(self, space: SearchSpace, default: Configuration) -> Sequence[Wish]:
        return flashinfer.ranking(space, default)

    def check(self) -> None:
        super().check()
        import torch

        if not torch.backends.cuda.is_built():
            raise SamplerError(f"{self.name} needs a torch that is built for CUDA, though no GPU")

    def tune(self, entries: Sequence[int], time: Time, rows: int) -> int | None:
        import torch
        from flashinfer import autotuner
        from flashinfer.fused_moe.utils import map_to_hybrid_bucket_uncapped

        class Profiler(autotuner.AutoTuner):  # type: ignore[misc]
            """Asks for a time in place of launching kernels."""

            def _profile_single_kernel(
                self, runner: "TunableRunner", inputs: list[Any], tactic: int, *given: Any, **named: Any
            ) -> float:
                return time(entries[tactic])

        class Runner(autotuner.TunableRunner):  # type: ignore[misc]
            """The list as FlashInfer's tactics."""

            def get_valid_tactics(self, inputs: list[Any], profile: object) -> list[int]:
                return list(range(len(entries)))

            def forward(self, inputs: list[Any], tactic: int = -1, do_preparation: bool = False, **given: Any) -> None:
                """Nothing."""

        at = (map_to_hybrid_bucket_uncapped(rows),)
        bucketed = autotuner.DynamicTensorSpec((0,), (0,), at, map_to_hybrid_bucket_uncapped)
        tuning = autotuner.TuningConfig(dynamic_tensor_specs=(bucketed,))
        tuner = Profiler()
        tuner.is_tuning_mode = True
        _, tactic = tuner.choose_one("gemm", [Runner()], tuning, [torch.empty(rows, 1)])
        return entries[tactic] if tactic >= 0 else None
