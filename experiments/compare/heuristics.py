"""The suggestions of nvidia-matmul-heuristics as a ranking; TorchInductor chooses CUTLASS kernels by them."""

from collections.abc import Mapping, Sequence

from tilescout.costmodel.heuristics import suggest
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.space import SearchSpace


def ranking(space: SearchSpace, default: Configuration) -> Sequence[Mapping[str, Value]]:
    """Its tiles, clusters, splits and stages, the fastest by its own estimate first; other knobs are left open.

    Raises
    ------
    ModelError
        If the package is not installed, does not know the device or the types, or crashed.
    SamplerError
        If the space is not one of matrix products.
    """
    if not isinstance(space.problem, GemmProblem):
        raise SamplerError(f"ranking.heuristics suggests kernels for matrix products, {space.problem} is none")
    wishes: list[Mapping[str, Value]] = []
    for found in suggest(space.problem, space.device.name):
        wish: dict[str, Value] = {"tile_m": found.rows, "tile_n": found.columns, "tile_k": found.depth}
        wish |= {"cluster_m": found.cluster_m, "cluster_n": found.cluster_n, "stages": found.stages}
        wish |= {"split_k": found.split_k}
        wishes.append({name: value for name, value in wish.items() if name in default})
    return wishes
