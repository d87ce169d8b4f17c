"""Problems of one shape: what was measured of one of them tells of the others.

A model that saw a product in bf16 knows much of the same product in fp8, and of its transpose. Where it is judged on
problems that it has not seen, such problems are left out together; where an interval is over problems, they are drawn
together.
"""

from collections.abc import Sequence

from tilescout.spaces.problems import Problem

NEAR = 1.1
"""Sizes that differ by no larger factor are near: the default of 1000x1000x1000 is good at 1024x1024x1024."""


def shape_groups(problems: Sequence[Problem]) -> list[str]:
    """A label for each problem, the same for those of one shape: the first one of them, as it is printed.

    Problems are of one shape if each size of `Problem.shape` is near. Those that a third one is near to both are,
    too. A problem without sizes is of a shape of its own.
    """
    labels = list(range(len(problems)))
    for at, problem in enumerate(problems):
        for earlier in range(at):
            if _are_near(problems[earlier], problem):
                joined = sorted((labels[earlier], labels[at]))
                labels = [joined[0] if label == joined[1] else label for label in labels]
    return [str(problems[label]) for label in labels]


def _are_near(first: Problem, second: Problem) -> bool:
    if first == second:
        return True
    sizes, others = first.shape, second.shape
    if type(first) is not type(second) or not sizes or len(sizes) != len(others):
        return False
    return all(max(pair) <= NEAR * min(pair) for pair in zip(sizes, others, strict=True))
