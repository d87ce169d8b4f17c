"""The gate and up product of experts with its SwiGLU, for Hopper: D = silu(A @ gate.T) * (A @ up.T), of every expert.

The kernel is that of ``grouped_gemm_sm90``: ``kernel`` gives it another view of the weights, ``epilogue`` another end
of a tile, ``template`` their rules.
"""

from tilescout.spaces.grouped_swiglu_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
