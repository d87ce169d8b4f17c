"""The kernel of ``grouped_gemm_sm90``, whose blocks work on experts in several places of the list of tiles at once.

Tiles of an expert with few tokens wait for its weights, those of one with many for the tensor cores. Walked one expert
after the other, all blocks wait for the same. And all clusters may share the tiles of the last wave along k. ``order``
says which tile is whose, ``kernel`` is the code that runs on the GPU beside that of ``grouped_gemm_sm90``, ``template``
has the rules.
"""

from tilescout.spaces.grouped_strands_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
