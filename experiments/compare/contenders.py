"""What can be compared: the house's samplers, Kernel Tuner's strategies, and rankings, by their names.

- ``NAME`` or ``NAME:OPTION=VALUE:...``: a sampler of `tilescout.search.samplers`; the model of ``guided`` is trained
  without the problem that is replayed; one that stops by itself goes on with ``whole=1``;
- ``kernel_tuner.STRATEGY[:OPTION=VALUE...]``: a strategy of Kernel Tuner, run by Kernel Tuner;
- ``ranking.NAME[:top=K]`` or ``ranking.FILE.json[:top=K]``: the first K of a list, measured in order;
- ``seeds=N`` behind any of them: at most so many searches a problem, for strategies that are slow.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from tilescout.experiments.compare.held_out import FOLDER
from tilescout.experiments.compare.rankings import find_ranking, places
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.options import Option, read_options
from tilescout.search.studies.folders import STORE
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tuning.loop import Budget, run
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

_WHOLE = Option("whole", 0, 0, 1, "1: go on also where the sampler finds that it is not worth it")
_SEEDS = Option("seeds", 10**6, 1, 10**6, "how many searches a problem are run at most")
_TOP = Option("top", 10**6, 1, 10**6, "how many configurations of the list are measured")


@dataclass(frozen=True)
class Contender(ABC):
    """A strategy with its options.

    Attributes
    ----------
    name
        As it was asked for, options included.
    options
        Its options, as text.
    seeds
        Most searches a problem.
    models
        Folder that keeps the cost models which are trained for searches.
    """

    name: str
    options: Mapping[str, str]
    seeds: int = int(_SEEDS.default)
    models: Path = STORE / "models" / FOLDER

    @property
    def deterministic(self) -> bool:
        """Whether the seed changes nothing, so that one search a problem tells all."""
        return False

    def prepare(self, table: Path, problems: Sequence[str], processes: int) -> None:  # noqa: B027  (most need nothing)
        """Do once, on so many cores, what the searches of these problems of a table share."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what can't be run here, before anything is.

        Raises
        ------
        SamplerError
            With what is wrong or what to install.
        """

    @abstractmethod
    def play(self, engine: ReplayEngine, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        """Search a replayed table.

        Parameters
        ----------
        engine
            Answers from the table.
        problem
            The problem.
        trials
            Most trials.
        seed
            Seed of all randomness.

        Returns
        -------
        sequence of int
            The configurations, as indices of the engine's space, in the order in which they were tried; none twice.
        """


class HouseSampler(Contender):
    """A sampler of tilescout's, in the loop that `tilescout tune` runs, but for the default as trial 0."""

    @property
    def deterministic(self) -> bool:
        return self.name.split(":")[0] == "exhaustive"

    def check(self) -> None:
        self._make(None, 0)

    def sampler(self, recording: RecordedSpace, seed: int) -> SpaceSampler:
        """The sampler of a search."""
        return self._make(recording.space, seed)

    def play(self, engine: ReplayEngine, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        whole = read_options(self.name, (_WHOLE,), {k: v for k, v in self.options.items() if k == _WHOLE.name})
        budget = Budget(trials, whole=bool(whole[_WHOLE.name]))
        study = optuna.create_study(sampler=self.sampler(engine.recording(problem), seed), direction="minimize")
        tried: list[int] = []
        with Evaluator(engine, problem) as evaluator:
            run(study, evaluator, budget, evaluator.library_us(), lambda trial: tried.append(trial.index))
        return tried

    def _make(self, space: SearchSpace | None, seed: int, **settings: Any) -> SpaceSampler:
        options = {name: value for name, value in self.options.items() if name != _WHOLE.name}
        return make_sampler(self.name.split(":")[0], space, seed, options, **settings)


class RankedList(Contender):
    """The first of a ranking, measured in order."""

    @property
    def deterministic(self) -> bool:
        return True

    def check(self) -> None:
        self._top()
        find_ranking(self._ranking())

    def play(self, engine: ReplayEngine, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        recording = engine.recording(problem)
        wishes = find_ranking(self._ranking())(recording.space, recording.default)
        found: list[int] = places(recording.space, recording.default, wishes)[: min(self._top(), trials)].tolist()
        return found

    def _ranking(self) -> str:
        return self.name.removeprefix("ranking.").split(":")[0]

    def _top(self) -> int:
        return int(read_options(self.name, (_TOP,), self.options)["top"])


def parse_contender(text: str, models: Path = STORE / "models" / FOLDER) -> Contender:
    """The contender that is written as `text`, see the module; it keeps cost models in the folder `models`.

    Raises
    ------
    SamplerError
        If it is malformed; an unknown one is refused by `Contender.check`.
    """
    name, *settings = text.split(":")
    pairs = [setting.partition("=") for setting in settings]
    if not name or not all(key and equals and value for key, equals, value in pairs):
        raise SamplerError(f"malformed strategy {text!r}: expected NAME or NAME:OPTION=VALUE:OPTION=VALUE...")
    options = {key: value for key, _, value in pairs}
    limit = read_options(text, (_SEEDS,), {key: options.pop(key) for key in [_SEEDS.name] if key in options})
    arguments = (text, options, int(limit[_SEEDS.name]), models)
    if name.startswith("kernel_tuner."):
        from tilescout.experiments.compare.kernel_tuner import KernelTunerStrategy

        return KernelTunerStrategy(*arguments)
    if name == "guided":
        from tilescout.experiments.compare.guided import GuidedSearch

        return GuidedSearch(*arguments)
    return (RankedList if name.startswith("ranking.") else HouseSampler)(*arguments)
