r"""How many 8-bit products does the library add up before it promotes the sum to fp32?

    python -m tilescout.experiments.research library-promotion 768x3072x12288 --out promotion.json

Each column of D is the sum of a large product at the beginning of k, its negative at the end, and a product of 1 at a
place of its own. Tensor cores keep some 14 bits of an 8-bit sum: a 1 that is added to the large product there is lost.
It is kept where the sums were promoted in between. So the first place at which it is kept is the number of products
that are added up before a promotion, or some more if no column has its 1 there.
"""

from typing import Any

import click

from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.spaces.gemm import GemmProblem

LARGE = 256.0  # its square is 2**16, against a product of 1


def kept_at(problem: GemmProblem, fast: bool, device: str) -> tuple[list[int], list[bool]]:
    """The places of the products of 1, and which of them the library keeps."""
    import torch

    m, n, k = problem.m, problem.n, problem.k
    places = torch.linspace(1, k - 2, n, device=device).long()
    a, b = torch.ones(m, k, device=device), torch.zeros(n, k, device=device)
    a[:, 0], a[:, -1], b[:, 0], b[:, -1] = LARGE, -LARGE, LARGE, LARGE
    b[torch.arange(n, device=device), places] = 1.0
    left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    product = torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)
    return places.tolist(), (product[m // 2] != 0).tolist()


def changes(places: list[int], kept: list[bool]) -> list[tuple[int, bool]]:
    """The first place, and those at which it changes whether a 1 is kept."""
    return [(places[at], kept[at]) for at in range(len(kept)) if at == 0 or kept[at] != kept[at - 1]]


@study(GPU, out_required=True)
@click.argument("problems", nargs=-1, required=True)
@device_option
def main(run: Run, problems: tuple[str, ...], device: str) -> None:
    """Find the places, with the library's default accumulation and with its fast one."""
    found: dict[str, Any] = {}
    for problem in (GemmProblem.parse(f"{text}:e4m3") for text in problems):
        found[str(problem)] = {
            "fast" if fast else "default": changes(*kept_at(problem, fast, device)) for fast in (False, True)
        }
        print(problem, found[str(problem)], flush=True)
    run.keep({"problems": found})
