"""Grouped matrix products for Hopper, of which the half-empty tiles are loaded as halves too.

``kernel`` is the code that runs on the GPU beside that of ``grouped_gemm_sm90``, whose files stay as they are, for
their hash is in recorded tables; ``template`` says how it is built.
"""

from tilescout.spaces.grouped_halved_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
