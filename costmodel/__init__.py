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
    "Prediction",
    "Quality",
    "RankingModel",
    "RankingOptions",
    "Roofline",
    "Sample",
    "Suggestion",
    "binary_features",
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

__getattr__, __dir__ = public_names(
    __name__,
    {
        "AnalyticModel": "analytic",
        "BlendModel": "blend",
        "BlendOptions": "blend",
        "Calibration": "analytic",
        "Constants": "analytic",
        "CostModel": "estimator",
        "EnsembleModel": "ensemble",
        "Expected": "estimator",
        "Features": "features",
        "Fitted": "estimator",
        "Floats": "arrays",
        "ForestModel": "forest",
        "ForestOptions": "forest",
        "ModelCard": "persistence",
        "Prediction": "estimator",
        "Quality": "evaluation",
        "RankingModel": "ranking",
        "RankingOptions": "ranking",
        "Roofline": "roofline",
        "Sample": "estimator",
        "Suggestion": "heuristics",
        "binary_features": "features",
        "leave_out": "evaluation",
        "load_model": "persistence",
        "median_interval": "evaluation",
        "quality": "evaluation",
        "regret_of_order": "evaluation",
        "save_model": "persistence",
        "shipped_calibration": "analytic",
        "shipped_model": "persistence",
        "space_features": "features",
        "suggest": "heuristics",
        "summarise": "evaluation",
    },
)
