"""Who compiles a model in the studies of `autotune`: TorchInductor by its options, and ours by those of its own."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tilescout.search.autotuning.tuner import TunerOptions

CONTENDERS = ("default", "ours", "max-autotune")
ONE_BY_ONE = "one-by-one"
"""The contender that is ours without products that share A as branches of a graph."""

COPIED = "copied-heads"
"""The contender that is ours with keys and values copied for heads that share them, as the model has it."""

IN_GRAPHS = "ours-in-graphs"
"""The contender that is ours for those who replay CUDA graphs: kernels begin before the last one ends."""

PRODUCTS = "max-autotune-products"
"""The contender that is max-autotune without coordinate descent: that tunes what is no product, one by one."""

OURS: Mapping[str, TunerOptions] = MappingProxyType(
    {
        "ours": TunerOptions(),
        ONE_BY_ONE: TunerOptions(side_by_side=False),
        COPIED: TunerOptions(keys_in_place=False),
        IN_GRAPHS: TunerOptions(dependent_launch=True),
    }
)

OPTIONS: Mapping[str, dict[str, str | int | bool | Callable[..., object]]] = MappingProxyType(
    {"max-autotune": {"max_autotune": True, "coordinate_descent_tuning": True}, PRODUCTS: {"max_autotune": True}}
)
"""TorchInductor's options, as its mode max-autotune-no-cudagraphs has them; of other contenders the defaults."""

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "default": "#64748b",
        "ours": "#2563eb",
        "max-autotune": "#d97706",
        PRODUCTS: "#b45309",
        ONE_BY_ONE: "#059669",
        COPIED: "#9333ea",
        IN_GRAPHS: "#0891b2",
        "ours-overlapped": "#0e7490",  # of files in which candidates of ours-in-graphs were timed between other kernels
    }
)
"""In which they are drawn, in this order."""
