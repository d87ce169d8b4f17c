"""Outcomes of measurements, as journals keep them."""

from typing import Any

import pytest

from tilescout.search.measure.measurement import Measurement, Status
from tilescout.spaces.resources import Resources


@pytest.mark.parametrize("value", ["", "x", "\u202eabc", [], {}, True])
@pytest.mark.parametrize("name", ["registers", "instructions", "relative_error"])
def test_what_is_no_number_is_refused(name: str, value: Any) -> None:
    record = Measurement(Status.WRONG, "", resources=Resources(32, 0, 1024, 448), relative_error=0.5).to_dict()
    assert Measurement.from_dict(record).to_dict() == record
    (record if name in record else record["resources"])[name] = value
    with pytest.raises(TypeError, match=name):
        Measurement.from_dict(record)
