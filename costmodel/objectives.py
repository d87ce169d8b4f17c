"""Samples of kernels that were timed in different ways, told apart for a model that learns from both.

In some tables each kernel was timed in a chain of its own launches, in others among kernels that write its inputs and
read its output, as in a model. A search does the latter, and which kernels are the fastest is not quite the same. So
a feature more says which it was. A fitted model takes that feature as settled: it predicts times among other kernels,
and asks for no more features than before.

Of 34 problems that no table holds, the fastest of the first five kernels by the model of `gemm_streamk_sm90` is 2.6 %
behind the fastest that searches had found by tables of chains alone, and 1.8 % by tables of both kinds, told apart so.
Where nothing tells them apart it is 2.2 % (`experiments/results/stream-k.md`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features

AMONG_OTHERS = "among_others"
"""The feature: 1 where kernels were timed among others, 0 in chains."""


def told_apart(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples, with how they were timed as a feature more; the same ones where all were timed in one way."""
    if len({sample.among_others for sample in samples}) == 1:
        return samples
    return [replace(sample, features=sample.features.beside(_column(sample))) for sample in samples]


def _column(sample: Sample) -> Features:
    return Features((AMONG_OTHERS,), np.full((len(sample), 1), float(sample.among_others)))
