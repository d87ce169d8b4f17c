"""How tokens are routed to experts: the sizes of the groups of a grouped product, drawn from a seed."""

import re
from dataclasses import dataclass
from reprlib import repr as short

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import ProblemError

KINDS = ("balanced", "zipf", "one", "worst", "recorded")
MOST_EXPERTS = 4096

_TEXT = re.compile(
    r"(?P<kind>balanced|one|worst)|zipf-(?P<exponent>\d{1,2}(\.\d{1,3})?)|recorded-(?P<counts>\d{1,10}(\.\d{1,10})*)"
)
_FORM = "balanced, zipf-EXPONENT, one, worst or recorded-COUNT.COUNT..., for example zipf-1.2"
_MOST_SKEWED = 20.0  # beyond, the first expert has all tokens to within one in a million


@dataclass(frozen=True, order=True)
class Routing:
    """A distribution of tokens over experts.

    Parameters
    ----------
    kind
        ``balanced``: the experts' shares differ by one token at most. ``zipf``: each token goes to an expert
        independently, to the r-th most popular one with a probability in proportion to r ** -exponent; ``zipf-0`` has
        all experts equally likely. ``one``: all tokens go to one expert. ``worst``: every expert has one token, as far
        as they suffice, and one expert all the others; no routing has more tiles, of any height, or reads more weights.
        ``recorded``: shares in proportion to a recorded histogram, rounded.
    exponent
        Of ``zipf``.
    counts
        Of ``recorded``: tokens of each expert.

    Raises
    ------
    ProblemError
        If there is no such distribution.
    """

    kind: str = "balanced"
    exponent: float = 0.0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ProblemError(f"unknown routing {short(self.kind)}, allowed are {_FORM}")
        if not 0 <= self.exponent <= _MOST_SKEWED or (self.exponent and self.kind != "zipf"):
            raise ProblemError(f"routing {self}: an exponent is one of zipf, and from 0 to {_MOST_SKEWED:g}")
        if bool(self.counts) != (self.kind == "recorded"):
            raise ProblemError("routing: recorded has a count for every expert, and nothing else has any")
        if self.counts and not 0 < sum(self.counts) < 2**31:
            raise ProblemError(f"routing: recorded counts add up to {sum(self.counts)}, allowed are 1 to {2**31 - 1}")

    def __str__(self) -> str:
        if self.kind == "zipf":
            return f"zipf-{self.exponent:g}"
        return f"recorded-{'.'.join(map(str, self.counts))}" if self.counts else self.kind

    @classmethod
    def parse(cls, text: str) -> "Routing":
        """Read the form that `str` prints.

        Raises
        ------
        ProblemError
            If `text` has another form.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ProblemError(f"malformed routing {short(text)}: expected {_FORM}")
        if match["kind"]:
            return cls(match["kind"])
        if match["exponent"]:
            return cls("zipf", float(match["exponent"]))
        return cls("recorded", counts=tuple(map(int, match["counts"].split("."))))

    @property
    def drawn(self) -> bool:
        """Whether a seed decides anything."""
        return self.kind != "recorded"

    @property
    def extreme(self) -> bool:
        """Whether (nearly) all tokens go to one expert: no router does that where each token goes to several."""
        return self.kind in ("one", "worst")

    def groups(self, experts: int, tokens: int, seed: int) -> NDArray[np.int64]:
        """Tokens of each expert, of shape [experts]; they add up to `tokens`.

        Parameters
        ----------
        experts, tokens
            How many there are.
        seed
            Decides which experts are popular, and by ``zipf`` where each token goes.
        """
        generator = np.random.default_rng(seed)
        if self.kind == "balanced":
            groups = np.full(experts, tokens // experts)
            groups[generator.permutation(experts)[: tokens % experts]] += 1
        elif self.kind == "zipf":
            weights = np.arange(1, experts + 1, dtype=np.float64) ** -self.exponent
            groups = generator.multinomial(tokens, generator.permutation(weights / weights.sum()))
        elif self.kind == "one":
            groups = np.zeros(experts, dtype=np.int64)
            groups[generator.integers(experts)] = tokens
        elif self.kind == "worst":
            reached = generator.permutation(experts)[:tokens]
            groups = np.zeros(experts, dtype=np.int64)
            groups[reached] = 1
            groups[reached[0]] += tokens - len(reached)
        else:
            groups = _in_proportion(np.array(self.counts), tokens)
        return np.asarray(groups, dtype=np.int64)


def _in_proportion(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Integers that add up to `total`, in proportion to counts: rounded down, and one more where most was lost."""
    whole = counts * total // counts.sum()
    lost = counts * total % counts.sum()
    whole[np.argsort(-lost, kind="stable")[: total - whole.sum()]] += 1
    return np.asarray(whole)
