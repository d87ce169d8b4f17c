"""Two kernels of ``grouped_gemm_sm90`` as one: the device tells by how tokens are routed which of them runs.

``rule`` is what decides, ``template`` says how a pair is built, ``kernel`` is the code that runs on the GPU beside that
of ``grouped_gemm_sm90``.
"""

from tilescout.spaces.grouped_pair_sm90.template import TEMPLATE, GroupedPairSm90Template, pair_of

__all__ = ["TEMPLATE", "GroupedPairSm90Template", "pair_of"]
