"""Which model predicts: that of the device, or of a sibling of it, whose predictions are doubted."""

import numpy as np
import pytest

from tilescout.costmodel.features import space_features
from tilescout.experiments.commands.predict import ANALYTIC, LEARNED, find_model
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import find_template


def test_a_device_without_a_model_gets_that_of_a_sibling_and_wider_intervals() -> None:
    own, lent = find_model("gemm_sm90", "h200", LEARNED), find_model("gemm_sm90", "h100", LEARNED)
    assert (own.of_sibling, lent.of_sibling) == (False, True)
    assert lent.origin == f"{own.origin} on h200"
    template = find_template("gemm_sm90")
    space = template.space(template.parse("2048x2048x2048:bf16"), find_device("h100"))
    features = space_features(space.subset(np.arange(8)), template)
    low, high = lent.predict(features).interval_us()
    own_low, own_high = own.predict(features).interval_us()
    assert (high / low > own_high / own_low).all()
    np.testing.assert_array_equal(lent.predict(features).mean, own.predict(features).mean)


def test_where_there_is_no_model_it_is_said_how_to_have_one() -> None:
    with pytest.raises(ModelError, match="no model of softmax_sm90 on h200 is shipped; train one"):
        find_model("softmax_sm90", "h200", LEARNED)
    with pytest.raises(ModelError, match="no calibration for h100 is shipped"):
        find_model("gemm_sm90", "h100", ANALYTIC)
