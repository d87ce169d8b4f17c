"""The guided samplers: a prior, a posterior, an acquisition function and a stopping rule, a module each."""

from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.guided.prior import SHIPPED, model_beside
from tilescout.search.samplers.guided.sampler import ColdSampler, GuidedSampler

__all__ = ["SHIPPED", "ColdSampler", "GuidedOptions", "GuidedSampler", "model_beside"]
