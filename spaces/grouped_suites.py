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
from tilescout.spaces.suite import Entry, checked_count, checked_experts, checked_name, checked_tokens

_KEYS = {"name", "n", "k", "count", "experts"}


def expert_entries(record: Mapping[str, Any]) -> Iterator[Entry]:
    """The entries of the experts in a suite's file: by product, then by number of tokens, then by routing.

    Raises
    ------
    ProblemError, LookupError, TypeError, ValueError
        If the file says something else.
    """
    batches = [checked_tokens(tokens) for tokens in _several(record, "batches")]
    routings = [Routing.parse(text) for text in _several(record, "routings")]
    for product in record["expert"]:
        check_keys(product, _KEYS)
        chosen, of = checked_experts(product["experts"])
        name = checked_name(product["name"])
        for tokens in batches:
            for routing in routings:
                problem = GroupedProblem(of, tokens * chosen, product["n"], product["k"], routing=routing)
                yield Entry(str(problem), name, "", checked_count(product.get("count", 1)))


def _several(record: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key. An empty one would make no problems, however long the other lists take."""
    if not isinstance(record[key], list) or not record[key]:
        raise ValueError(f"`{key}` is no list, or an empty one")
    return list(record[key])
