"""The kernels that code of TorchInductor's cache runs: its graphs pass nobody, but it binds them when it is loaded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilescout.search.export.decisions import Decision
from tilescout.search.export.generated_calls import bound_calls
from tilescout.search.export.loaded_kernels import bundle_of, family_of, find_family
from tilescout.spaces.gemm import GemmProblem


@dataclass(frozen=True)
class CachedCode:
    """The calls that code bound in this process, since this was made, to kernels of an evidence store.

    Parameters
    ----------
    bundles
        Folders of bundles: of each setting that code may have been compiled in, the store's.
    before
        Calls that are not counted: those that were bound before.
    """

    bundles: tuple[Path, ...] = ()
    before: Mapping[tuple[str, int | None], int] = field(default_factory=bound_calls)

    def beside(self, bundles: Path) -> "CachedCode":
        """The same, with one folder more."""
        return replace(self, bundles=(*self.bundles, bundles))

    def products(self) -> tuple[Counter[GemmProblem], dict[GemmProblem, Decision]]:
        """How often each product is bound, and what was decided about it; of an unknown m, nothing."""
        met: Counter[GemmProblem] = Counter()
        decisions: dict[GemmProblem, Decision] = {}
        for name, rows, count in self._bound():
            if rows is None:
                continue
            problem = replace(find_family(name).problem, m=rows)
            met[problem] += count
            if (decision := bundle_of(name).by_problem.get(problem)) is not None:
                decisions[problem] = decision
        return met, decisions

    def of_any_rows(self) -> Counter[str]:
        """How often products whose m is known when the code runs are bound, by their families."""
        found: Counter[str] = Counter()
        for name, rows, count in self._bound():
            if rows is None:
                found[family_of(name)] += count
        return found

    def _bound(self) -> list[tuple[str, int | None, int]]:
        now = bound_calls() - Counter(self.before)
        mine = {name for name, _ in now if any((each / name.partition("/")[0]).is_dir() for each in self.bundles)}
        return [(name, rows, count) for (name, rows), count in now.items() if name in mine]
