"""The algorithms of cuBLASLt as a search space: matrix products of the vendor's library, chosen by measuring."""

from tilescout.spaces.cublaslt.template import FAST, TEMPLATE

__all__ = ["FAST", "TEMPLATE"]
