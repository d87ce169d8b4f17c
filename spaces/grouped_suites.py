"""Suites of grouped products by the experts of models, in a suite's file.

A file names the products of experts (``[[expert]]``), each of `n` outputs and `k` inputs, the numbers of tokens with
which they are computed (``batches``) and how tokens are routed (``routings``). With ``experts = [A, E]`` each token
goes to A of the E experts: t tokens are t * A rows of the problem.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tilescout.spaces.errors import check_keys
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.routing import Routing
from tilescout.spaces.suite import Entry, checked_count

_KEYS = {"name", "n", "k", "count", "experts"}


def expert_entries(record: Mapping[str, Any]) -> Iterator[Entry]:
    """The entries of the experts in a suite's file: by product, then by number of tokens, then by routing.

    Raises
    ------
    ProblemError, LookupError, TypeError, ValueError
        If the file says something else.
    """
    for product in record["expert"]:
        check_keys(product, _KEYS)
        chosen, of = product["experts"]
        for tokens in record["batches"]:
            for routing in map(Routing.parse, record["routings"]):
                problem = GroupedProblem(of, tokens * chosen, product["n"], product["k"], routing=routing)
                yield Entry(str(problem), product["name"], "", checked_count(product.get("count", 1)))
