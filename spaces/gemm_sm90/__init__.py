"""A Hopper GEMM: warp-specialised, persistent, TMA in and out, WGMMA in between.

``layout`` is the arithmetic of a configuration, ``template`` its knobs, rules and defaults, ``kernel`` and
``scheduler`` the code that runs on the GPU.
"""

from tilescout.spaces.gemm_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
