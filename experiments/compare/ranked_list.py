"""A ranking as a contender: a list that is measured from the top."""

from collections.abc import Sequence

from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.experiments.compare.rankings import find_ranking, places
from tilescout.search.samplers.options import Option, read_options
from tilescout.spaces.problems import Problem

_TOP = Option("top", 10**6, 1, 10**6, "how many configurations of the list are measured")


class RankedList(Contender):
    """The first of a ranking, measured in order."""

    @property
    def deterministic(self) -> bool:
        return True

    def check(self) -> None:
        self._top()
        find_ranking(self._ranking())

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        recording = engine.recording(problem)
        wishes = find_ranking(self._ranking())(recording.space, recording.default)
        found: list[int] = places(recording.space, recording.default, wishes)[: min(self._top(), trials)].tolist()
        return found

    def _ranking(self) -> str:
        return self.name.removeprefix("ranking.").split(":")[0]

    def _top(self) -> int:
        return int(read_options(self.name, (_TOP,), self.options)["top"])
