"""Predict the time of configurations without running them.

Everything public is named here; a module is imported when one of its names is first used. Fit a model to measurements,
predict, and compare models by their score::

    from tilescout.costmodel import ForestModel, load_model, shipped_model, space_features

`tilescout.costmodel.testing` has the checks that a model of one's own should pass.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.costmodel.analytic import AnalyticModel, Calibration, Constants, shipped_calibration
    from tilescout.costmodel.arrays import Floats
    from tilescout.costmodel.blend import BlendModel, BlendOptions
    from tilescout.costmodel.ensemble import EnsembleModel
    from tilescout.costmodel.estimator import CostModel, Expected, Fitted, Prediction, Sample
    from tilescout.costmodel.evaluation import Quality, leave_out, median_interval, quality, regret_of_order, summarise
    from tilescout.costmodel.features import Features, binary_features, space_features
    from tilescout.costmodel.forest import ForestModel, ForestOptions
    from tilescout.costmodel.heuristics import Suggestion, suggest
    from tilescout.costmodel.persistence import ModelCard, load_model, save_model, shipped_model
    from tilescout.costmodel.portfolio import Portfolio, choose_portfolio
    from tilescout.costmodel.ranking import RankingModel, RankingOptions
    from tilescout.costmodel.roofline import Roofline

__all__ = [
    "AnalyticModel",
    "BlendModel",
    "BlendOptions",
    "Calibration",
    "Constants",
    "CostModel",
    "EnsembleModel",
    "Expected",
    "Features",
    "Fitted",
    "Floats",
    "ForestModel",
    "ForestOptions",
    "ModelCard",
    "Portfolio",
    "Prediction",
    "Quality",
    "RankingModel",
    "RankingOptions",
    "Roofline",
    "Sample",
    "Suggestion",
    "binary_features",
    "choose_portfolio",
    "leave_out",
    "load_model",
    "median_interval",
    "quality",
    "regret_of_order",
    "save_model",
    "shipped_calibration",
    "shipped_model",
    "space_features",
    "suggest",
    "summarise",
]

_NAMES = {
    "analytic": "AnalyticModel Calibration Constants shipped_calibration",
    "arrays": "Floats",
    "blend": "BlendModel BlendOptions",
    "ensemble": "EnsembleModel",
    "estimator": "CostModel Expected Fitted Prediction Sample",
    "evaluation": "Quality leave_out median_interval quality regret_of_order summarise",
    "features": "Features binary_features space_features",
    "forest": "ForestModel ForestOptions",
    "heuristics": "Suggestion suggest",
    "persistence": "ModelCard load_model save_model shipped_model",
    "portfolio": "Portfolio choose_portfolio",
    "ranking": "RankingModel RankingOptions",
    "roofline": "Roofline",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__getattr__, __dir__ = public_names(__name__, _MODULES)
