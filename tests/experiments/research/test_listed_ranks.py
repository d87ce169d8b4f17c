"""Where a model ranks the fastest of kernels that were listed by hand, by log times that are given."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.listed_ranks import DEVICE, SPACE, main, ranked
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

PROBLEM = "6x24x31040:bf16"


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    template = find_template(SPACE)
    return template.space(template.parse(PROBLEM), find_device(DEVICE))


def kernel(space: SearchSpace, index: int, ratio: float | None) -> dict[str, Any]:
    return {"configuration": dict(space[index]), "ratio": ratio}


def test_the_rank_is_of_the_fastest_and_the_speeds_are_in_the_order_of_the_model(space: SearchSpace) -> None:
    logs = np.arange(len(space), dtype=np.float64)
    slow = [kernel(space, index, 2.0) for index in range(0, 20, 2)]

    told = ranked(space, logs, [kernel(space, 700, 0.5), *slow, kernel(space, 12, 0.8), kernel(space, 3, None)])

    assert told["timed"] == 12
    assert told["fastest"] == 2.0
    assert told["rank"] == 701
    assert told["first"] == {"5": 0.5, "10": 1.25, "20": 2.0}


def test_kernels_none_of_which_was_timed_are_refused(space: SearchSpace) -> None:
    with pytest.raises(TilescoutError, match="none of the listed kernels was timed on 6x24x31040"):
        ranked(space, np.zeros(len(space)), [kernel(space, 3, None)])


def test_the_shipped_model_ranks_the_kernels_of_a_file(space: SearchSpace, tmp_path: Path) -> None:
    listed, out = tmp_path / "listed.json", tmp_path / "ranks.json"
    Record.of(
        "stream-k", "listed", {"problems": {PROBLEM: {"spaces": {SPACE: [kernel(space, at, 1.0) for at in (5, 9)]}}}}
    ).write(listed)

    done = CliRunner().invoke(main, [str(listed), "--out", str(out)])

    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["result"]["problems"][PROBLEM]["timed"] == 2
    assert PROBLEM in done.output
