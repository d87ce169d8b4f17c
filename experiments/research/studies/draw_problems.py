"""Draw problems that nothing may be chosen on, from published models that no suite of ours holds.

    python -m tilescout.experiments.research draw-problems --pool published --out spaces/suites/out-of-sample.toml

Headlines of speed, regret and trials should be of these. Eight problems are drawn of each kind: decode (up to 64 rows),
prefill (512 to 8,192), odd (a number of rows that no tile divides), wide (the vocabulary) and deep-k (k is at least 16
times n). No product, as (n, k), is one of another suite. They were drawn by a seed, before any was measured.

**The rule.** Nothing is picked, fitted or tuned on these problems: no default, no constant, no model, no knob. When
something was chosen on them after all, they are retired to a suite of another name, and others are drawn with the next
seed. Another seed draws other rows of the same products. Models have learned from products of the first list,
`published_models.toml`, so problems to judge by are drawn of the newest, `further_models.toml`. Those of the suite are
of the first list, and models learn from none of its products.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import Run, study
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.suite import Entry, find_suite, suite_names, write_suite

NAME = "out-of-sample"
POOLS = {"published": "published_models.toml", "further": "further_models.toml"}
"""The lists of models that problems are drawn of; no product is in both."""
*_, NEWEST = POOLS
EACH = 8
PREFILL = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)

Product = tuple[str, int, int]
"""A model and the n and k of one of its products."""


pool_option = click.option(
    "--pool", type=click.Choice(list(POOLS)), default=NEWEST, show_default=True, help="The list of models to draw of."
)


def products(kind: str, pool: str) -> list[Product]:
    """The products of the models of a pool that are listed under a kind."""
    path = Path(__file__).parents[1] / POOLS[pool]
    models: list[dict[str, Any]] = tomllib.loads(path.read_text())["model"]
    found: list[Product] = []
    for model in models:
        sizes = model.get(kind, [])
        found += [(model["name"], n, k) for n, k in ([sizes] if kind == "vocabulary" and sizes else sizes)]
    return found


def sizes_of(pool: str) -> set[tuple[int, int]]:
    """The products of a pool, as (n, k)."""
    return {product[1:] for kind in {listed for listed, _ in KINDS.values()} for product in products(kind, pool)}


def pooled() -> set[tuple[int, int]]:
    """The products of all pools, as (n, k): random problems to learn from may be none of them."""
    return set().union(*map(sizes_of, POOLS))


def of_suite() -> set[tuple[int, int]]:
    """The products of the suite to judge by, as (n, k)."""
    return {(problem.n, problem.k) for problem in find_suite(NAME).parsed(GemmProblem.parse)}


def kept_unseen() -> set[tuple[int, int]]:
    """The products that no model may learn from, as (n, k): those of the suite, and of the newest pool."""
    return sizes_of(NEWEST) | of_suite()


def known_products() -> set[tuple[int, int]]:
    """The products of our suites, as (n, k); those that are not GEMMs are no products."""
    found = set()
    for name in suite_names():
        if name == NAME:
            continue
        try:
            found |= {(problem.n, problem.k) for problem in find_suite(name).parsed(GemmProblem.parse)}
        except ProblemError:
            continue
    return found


def _log_uniform(generator: np.random.Generator, low: int, high: int) -> int:
    return int(np.exp(generator.uniform(np.log(low), np.log(high + 1))))


KINDS: dict[str, tuple[str, Callable[[np.random.Generator], int]]] = {
    "decode": ("dense", lambda generator: _log_uniform(generator, 1, 64)),
    "prefill": ("dense", lambda generator: int(generator.choice(PREFILL))),
    "odd": ("dense", lambda generator: 2 * _log_uniform(generator, 33, 2000) + 1),
    "wide": ("vocabulary", lambda generator: _log_uniform(generator, 1, 256)),
    "deep-k": ("deep", lambda generator: _log_uniform(generator, 32, 8192)),
}
"""Of each kind: the products that it is drawn of, and its number of rows."""


def drawn(seed: int, pool: str) -> Iterator[Entry]:
    """The problems of each kind of a pool, none twice; a product occurs once in a kind as long as there are others."""
    generator, known = np.random.default_rng(seed), known_products()
    for kind, (listed, rows) in KINDS.items():
        allowed = [product for product in products(listed, pool) if product[1:] not in known]
        found: dict[str, Entry] = {}
        while len(found) < EACH:
            for number in generator.permutation(len(allowed)):
                model, n, k = allowed[number]
                problem = f"{rows(generator)}x{n}x{k}:bf16"
                found.setdefault(problem, Entry(problem, f"{model}, {kind}"))
        yield from list(found.values())[:EACH]


def keep_suite(run: Run, title: str, source: str, entries: Sequence[Entry]) -> None:
    """Write a suite to the file that a run names.

    Raises
    ------
    StoreError
        If the file can't be written.
    """
    assert run.out is not None
    write_whole(run.out, write_suite(title, source, entries).encode())


@study("nothing but the sizes of published models", out_required=True)
@pool_option
@seed_option
def main(run: Run, pool: str, seed: int) -> None:
    """Write the suite of drawn problems."""
    entries = list(drawn(seed, pool))
    for entry in entries:
        click.echo(f"{entry.problem:28s} {entry.label}")
    source = f"drawn with seed {seed} of the sizes of published models that no other suite holds"
    keep_suite(run, "Unseen problems: no default, model or rule is chosen on them", source, entries)
