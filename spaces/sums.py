"""Whether like is compared with like: sums of 8-bit products are kept in more bits, or in fewer."""

from contextlib import suppress
from dataclasses import replace

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template


def fewer_bits(space: str, problem: Problem, library: str) -> str:
    """That the kernels of a space keep sums in fewer bits than the library's function, in words; empty if not so."""
    if not isinstance(problem, GemmProblem) or problem.element.bytes != 1 or problem.fast:
        return ""
    with suppress(SpaceError):  # a space of a person's own
        if find_template(space).fast_sums:
            return (
                f"the kernels of {space} keep sums in fewer bits than {library}, so their speed over it "
                f"compares unlike things; {replace(problem, fast=True)} is compared with use_fast_accum=True"
            )
    return ""
