"""Outcomes of measurements, as journals keep them."""

import math
from typing import Any

import pytest

from tilescout.search.measure.measurement import Clocks, Measurement, Status
from tilescout.spaces.resources import Resources


@pytest.mark.parametrize("value", ["", "x", "\u202eabc", [], {}, True, math.nan, math.inf, -math.inf, 2**54])
@pytest.mark.parametrize("name", ["registers", "instructions", "relative_error", "power_w"])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    made = Measurement(
        Status.WRONG,
        "",
        resources=Resources(32, 0, 1024, 448),
        clocks=Clocks(1980.0, 700.0, 60.0, "power cap"),
        relative_error=0.5,
    )
    record = made.to_dict()
    assert Measurement.from_dict(record) == made
    next(held for held in (record, record["resources"], record["clocks"]) if name in held)[name] = value
    with pytest.raises(TypeError, match=name):
        Measurement.from_dict(record)
