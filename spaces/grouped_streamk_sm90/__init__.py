"""The kernel of ``grouped_gemm_sm90``, whose clusters may share the tiles of the last wave along k (stream-K).

``kernel`` is the code that runs on the GPU beside that of ``grouped_gemm_sm90``; ``template`` has the rules.
"""

from tilescout.spaces.grouped_streamk_sm90.template import TEMPLATE, widened

__all__ = ["TEMPLATE", "widened"]
