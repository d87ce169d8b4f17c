"""Grouped matrix products for Hopper, each row scaled by the router's weight in the kernel.

``kernel`` and ``epilogue`` are the code that runs on the GPU beside that of ``grouped_gemm_sm90``; ``template`` says
how it is built.
"""

from tilescout.spaces.grouped_scaled_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
