"""The Hopper GEMM whose clusters share tiles along k: stream-K, or a fixed number of parts, beyond the cluster.

``template`` has the knobs, the rules and the defaults, ``partition`` says which steps of which tile a cluster
multiplies, ``layout`` what memory that takes, ``estimate`` roughly what time. ``kernel``, ``mainloop`` and ``sums`` are
the code that runs on the GPU, beside what it shares with ``gemm_sm90``. It also has tiles in finer steps than that, and
adds 8-bit products while the next ones are computed.
"""

from tilescout.spaces.gemm_streamk_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
