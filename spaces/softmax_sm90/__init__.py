"""A softmax over the rows of a matrix, for Hopper: every row is read once and written once, where it fits.

``layout`` is the arithmetic of a configuration, ``template`` its knobs, rules and defaults, ``kernel`` and ``exchange``
the code that runs on the GPU.
"""

from tilescout.spaces.softmax_sm90.template import TEMPLATE

__all__ = ["TEMPLATE"]
