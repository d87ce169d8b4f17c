"""The kernels of ``grouped_streamk_sm90``, and such that load half-empty tiles as halves too.

``kernel`` is the code that runs on the GPU beside that of ``grouped_gemm_sm90``, whose files stay as they are, for
their hash is in recorded tables; ``template`` has the knob and says how it is built.
"""

from tilescout.spaces.grouped_halved_sm90.template import TEMPLATE, widened

__all__ = ["TEMPLATE", "widened"]
