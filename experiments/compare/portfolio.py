"""The list of kernels among which the default of a kernel is chosen, as a ranking: a baseline that asks nobody."""

from collections.abc import Sequence

from tilescout.experiments.compare.rankings import Wish
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template


def ranking(space: SearchSpace, default: Configuration) -> Sequence[Wish]:
    """The default, and then the others of its template's list, in the list's order, which is the same for any problem.

    Raises
    ------
    SamplerError
        If the template has no such list.
    """
    listed = find_template(space.name).portfolio(space.problem, space.device)
    if not listed:
        raise SamplerError(f"ranking.portfolio: {space.name} has no list of kernels among which its default is chosen")
    return list(dict.fromkeys([default, *listed]))
