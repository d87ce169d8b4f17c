"""The features of a library's algorithms, which are known by numbers."""

import numpy as np

from tilescout.costmodel.features import space_features
from tilescout.spaces.cublaslt import TEMPLATE
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import of_any_problem


def test_every_tile_and_cluster_has_finite_features_that_tell_it_from_others() -> None:
    problem = GemmProblem(350, 7360, 832)
    rows = [
        (0, algorithm, tile, 35, split, 2 * (split > 1), 0, 0, cluster, option)
        for algorithm, clusters in ((21, (0,)), (66, range(2, 52)))
        for tile in (1, 35, 36, 311, 312, 630, 634)
        for cluster in clusters
        for split in (1, 3)
        for option in (0, 7)
    ]
    space = TEMPLATE.space_of(SearchSpace.codes_of(TEMPLATE.knobs, rows), problem, find_device("h200"))

    assert space is not None
    assert len(space) == len(rows)
    assert tuple(space.columns) == KNOBS
    features = space_features(space, of_any_problem(TEMPLATE))
    assert np.isfinite(features.values).all()
    newest = space.columns["algorithm"] == 66
    assert len(np.unique(features.values[newest], axis=0)) > 0.8 * newest.sum()
