"""Grouped matrix products for Hopper: a product for every expert, whose tokens are counted on the device.

``layout`` is the arithmetic of a configuration, ``template`` its knobs, rules and defaults, ``kernel``, ``groups`` and
``epilogue`` the code that runs on the GPU, beside what it shares with ``gemm_sm90``.
"""

from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
