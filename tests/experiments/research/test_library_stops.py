"""Where a search of cuBLASLt's algorithms stops, replayed on a screening that is shipped with the results."""

from pathlib import Path

import numpy as np

from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.experiments.research.screening import Screened
from tilescout.experiments.research.studies.library_stops import LEAST, searched, summary

TIMES = Path(__file__).parents[3] / "experiments" / "results" / "library-screen-2026-11-22" / "times"


class Certain(CostModel):
    """A model that is sure that all are alike."""

    def learn(self, samples):
        raise AssertionError("it knows already")

    def predict(self, features):
        return Prediction(np.zeros(len(features)), np.full(len(features), 1e-3), 1e-3)


def test_a_search_is_replayed_to_its_end_and_its_stop_is_noted() -> None:
    trials = 12
    found = searched(Screened.read(TIMES / "64x57344x8192-bf16.npz"), Certain(), trials)

    assert found.problem == "64x57344x8192:bf16"
    assert LEAST <= found.stop <= trials
    assert found.at_stop >= found.at_end >= 0
    told = summary([found], trials)
    assert told["problems"] == 1
    assert told["within 1 % after 12"] >= told["within 1 % at the stop"]
