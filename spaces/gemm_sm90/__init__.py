"""A Hopper GEMM: warp-specialised, persistent, TMA in and out, WGMMA in between.

``template`` has the knobs, the rules and the defaults, ``layout`` the arithmetic of a configuration, ``estimate`` the
rough times by which a default is chosen. ``kernel`` and the other modules are the code that runs on the GPU.
"""

from tilescout.spaces.gemm_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
