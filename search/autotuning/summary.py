"""The account of what was replaced while models were compiled, why, and what it gains."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilescout.search.autotuning.cached import CachedCode
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice, Decision
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.texts import number_of


@dataclass
class Summary:
    """The fate of the matrix products of all graphs that were compiled.

    Of a product in graphs whose kernels begin early and in others, which are decided apart, the last decision stands.

    Attributes
    ----------
    met
        How often each product is in a graph; of a dynamic m, the one that the graph was traced with.
    decisions
        The decisions about them.
    tuned
        The products that were decided in this process; the others were known.
    undecided
        Why a product was not decided; it runs the library's kernel.
    others
        How many more matrix products there are, by their operators, of types, layouts or sizes that no kernel is tuned
        for.
    failed
        Why a graph was left to the library, in whole or in part, whatever was decided about its products.
    in_place
        Of each attention that reads keys and values in place, the bytes that are not copied any more for heads that
        share them.
    launched_early
        In how many graphs TorchInductor's own kernels let the next kernel begin before they end.
    seconds
        Spent on deciding, in this process, by the clock on the wall.
    inactive
        Why nothing is tuned here at all; empty where it is.
    cached
        The calls of code that was loaded, be it from TorchInductor's cache, where they can be told.
    """

    met: Counter[GemmProblem] = field(default_factory=Counter)
    decisions: dict[GemmProblem, Decision] = field(default_factory=dict)
    tuned: set[GemmProblem] = field(default_factory=set)
    undecided: dict[GemmProblem, str] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    in_place: list[int] = field(default_factory=list)
    launched_early: int = 0
    seconds: float = 0.0
    inactive: str = ""
    cached: CachedCode | None = None

    def meet(self, problems: Mapping[GemmProblem, int], bundle: Bundle | None) -> None:
        """Count the products of a graph, with what a bundle decides about them."""
        self.met.update(problems)
        known = bundle.by_problem if bundle is not None else {}
        found = {problem: known[problem] for problem in problems if problem in known}
        self.decisions |= found
        for problem in found:
            self.undecided.pop(problem, None)

    @property
    def gain_us(self) -> float:
        """The time that all replaced products, each run once, are expected to save over the library's, in µs."""
        return sum(self._gain_us(problem) for problem in self.met)

    def _gain_us(self, problem: GemmProblem) -> float:
        decision = self.decisions.get(problem)
        if decision is None or decision.choice is Choice.LIBRARY:
            return 0.0
        evidence = decision.evidence
        if evidence.library_us is None or evidence.ratio is None:
            return 0.0
        return self.met[problem] * evidence.library_us * (1 - evidence.ratio)

    def __str__(self) -> str:
        if self.inactive:
            return f"tilescout: nothing is tuned: {self.inactive}"
        if not self.met and (told := self._of_cache()):
            return told
        if not self._compiled() and not self._beside():
            rest = ", and no code of TorchInductor's cache runs tuned kernels" if self.cached is not None else ""
            return f"tilescout: no matrix product was compiled{rest}"
        tuned = [problem for problem in self.met if self._choice(problem) not in (None, Choice.LIBRARY)]
        count = f"{sum(self.met[problem] for problem in tuned)} of {self._compiled()} matrix products"
        spent = f"{number_of(len(self.tuned), 'size')} tuned in {self.seconds:.1f} s"
        head = f"tilescout: {count} run tuned kernels; expected gain {self.gain_us:.1f} µs a call; {spent}"
        rows = sorted(self.met, key=lambda problem: (-self._gain_us(problem), problem))
        return "\n".join(
            [head, *(f"  {line}" for line in (*self._beside(), *self._lines(rows), *self._lines_of_others()))]
        )

    def _compiled(self) -> int:
        """How many matrix products were compiled."""
        return self.met.total() + self.others.total()

    def _beside(self) -> list[str]:
        """Lines about graphs, beside those of their products."""
        found = [f"a graph was left to the library, in whole or in part: {reason}" for reason in self.failed]
        if self.in_place:
            copied = f"{sum(self.in_place) / 1e6:.1f} MB a call are not copied"
            found.append(f"{len(self.in_place)} × attention: shared keys and values are read in place, {copied}")
        if self.launched_early:
            found.append(f"{number_of(self.launched_early, 'graph')} whose kernels begin before the last one ends")
        return found

    def _lines_of_others(self) -> Iterable[str]:
        for name, count in sorted(self.others.items()):
            yield f"{count} × {name}: library's, of types, layouts or sizes that nothing is tuned for"

    def _of_cache(self) -> str:
        """The account of a process whose tuned kernels are all those of cached code; empty if there are none."""
        met, decisions = self.cached.products() if self.cached is not None else (Counter(), {})
        rest = self.cached.of_any_rows() if self.cached is not None else Counter()
        if not met and not rest:
            return ""
        known = Summary(met, decisions)
        lines = known._lines(sorted(met, key=lambda problem: (-known._gain_us(problem), problem)))
        any_rows = (f"{count} × {family}: by the rows of each call" for family, count in rest.items())
        count = f"{met.total() + rest.total()} of TorchInductor's cached code run tuned kernels"
        compiled = f"{self._compiled() or 'no'} matrix product{'s were' if self._compiled() > 1 else ' was'} compiled"
        head = f"tilescout: {compiled}: {count}; expected gain {known.gain_us:.1f} µs a call"
        return "\n".join(
            [head, *(f"  {line}" for line in (*self._beside(), *lines, *any_rows, *self._lines_of_others()))]
        )

    def _choice(self, problem: GemmProblem) -> Choice | None:
        return self.decisions[problem].choice if problem in self.decisions else None

    def _lines(self, problems: Iterable[GemmProblem]) -> Iterable[str]:
        for problem in problems:
            count = f"{self.met[problem]} × {problem}"
            decision = self.decisions.get(problem)
            if decision is None:
                yield f"{count}: library's, {self.undecided.get(problem, 'not decided')}"
                continue
            evidence = decision.evidence
            source = "tuned now" if problem in self.tuned else "known"
            library = f"{evidence.library_us:.2f} µs" if evidence.library_us is not None else "unknown time"
            yield f"{count}: {decision.choice}, {evidence.reason} ({library}); {source}"
