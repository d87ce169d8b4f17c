"""Suites of matrix products by the layers of a model, in a suite's file.

A file names the products of a model's layers (``[[product]]``) and the numbers of tokens with which they are computed
(``[tokens]``), by phase. A product of `n` outputs and `k` inputs with t tokens is the problem t x n x k of the type
``dtype``. In a mixture of experts with ``experts = [A, E]``, each token goes to A of the E experts, and the tokens
spread evenly: an expert sees t * A / E of them. The phase ``training`` has the products of the gradients too, in the
layouts in which the tensors lie: of the inputs (t x k x n, layout kn) and of the weights (n x k x t, layout mn).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tilescout.spaces.errors import check_keys
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import Entry, checked_count, checked_experts, checked_name, checked_tokens

PHASES = ("decode", "prefill", "training")
_PRODUCT_KEYS = {"name", "n", "k", "count", "experts"}


def layer_entries(record: Mapping[str, Any]) -> Iterator[Entry]:
    """The entries of the layers in a suite's file, phase by phase.

    Raises
    ------
    ProblemError, LookupError, TypeError, ValueError
        If the file says something else.
    """
    tokens, products = record.get("tokens", {}), record.get("product", [])
    if not isinstance(tokens, dict) or not isinstance(products, list):
        raise TypeError("numbers of tokens stand under [tokens], and each product under [[product]]")
    check_keys(tokens, set(PHASES))
    dtype = record.get("dtype", GemmProblem.dtype)
    for phase in PHASES:
        for count in tokens.get(phase, []):
            checked_tokens(count)
            for product in products:
                check_keys(product, _PRODUCT_KEYS)
                chosen, of = checked_experts(product.get("experts", [1, 1]))
                name = checked_name(product["name"])
                rows, n, k = max(math.ceil(count * chosen / of), 1), product["n"], product["k"]
                shapes = {"": f"{rows}x{n}x{k}:{dtype}"}
                if phase == "training":
                    shapes[", gradient of the input"] = f"{rows}x{k}x{n}:{dtype}:kn"
                    shapes[", gradient of the weight"] = f"{n}x{k}x{rows}:{dtype}:mn"
                for suffix, text in shapes.items():
                    problem = str(GemmProblem.parse(text))
                    yield Entry(problem, name + suffix, phase, checked_count(product.get("count", 1)))
