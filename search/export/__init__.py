"""Hand the results of searches to PyTorch: bundles of kernels, graph passes, a ranker of TorchInductor's candidates.

Everything public is named here; a module is imported when one of its names is first used. In a model that
``torch.compile`` compiles::

    from tilescout.search import export

    with export.use("bundle/"):
        model = torch.compile(model)
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.export.bundle import Bundle, Kernel, read_bundle, write_bundle
    from tilescout.search.export.decisions import Choice, Decision, Evidence, Outcome, best_of, judge
    from tilescout.search.export.from_studies import Decided, make_bundle, read_outcomes
    from tilescout.search.export.graph_nodes import Report
    from tilescout.search.export.graph_rewrite import replace_products
    from tilescout.search.export.inductor import GraphPass, graph_pass, load, use
    from tilescout.search.export.inductor_lookup_table import lookup_table, write_lookup_table
    from tilescout.search.export.nvgemm_model import learned_ranker
    from tilescout.search.export.nvgemm_ranker import Ranker, use_ranker

__all__ = [
    "Bundle",
    "Choice",
    "Decided",
    "Decision",
    "Evidence",
    "GraphPass",
    "Kernel",
    "Outcome",
    "Ranker",
    "Report",
    "best_of",
    "graph_pass",
    "judge",
    "learned_ranker",
    "load",
    "lookup_table",
    "make_bundle",
    "read_bundle",
    "read_outcomes",
    "replace_products",
    "use",
    "use_ranker",
    "write_bundle",
    "write_lookup_table",
]

_NAMES = {
    "bundle": "Bundle Kernel read_bundle write_bundle",
    "decisions": "Choice Decision Evidence Outcome best_of judge",
    "from_studies": "Decided make_bundle read_outcomes",
    "graph_nodes": "Report",
    "graph_rewrite": "replace_products",
    "inductor": "GraphPass graph_pass load use",
    "inductor_lookup_table": "lookup_table write_lookup_table",
    "nvgemm_model": "learned_ranker",
    "nvgemm_ranker": "Ranker use_ranker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__getattr__, __dir__ = public_names(__name__, _MODULES)
