"""Operations on rows, judged by the real measuring process on the host: the right ones, and each fault."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.workloads import COPY

OPTIONS = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0))


@pytest.fixture(scope="module")
def live(rows_on_host: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    store = tmp_path_factory.mktemp("rows")
    template, problem = rows_on_host.HostSoftmax(), RowwiseProblem(64, 256)
    with (
        LocalEngine(template, store, ["cpu"], rows_on_host.HOST, OPTIONS) as engine,
        Evaluator(engine, problem) as evaluator,
    ):
        yield evaluator


@pytest.fixture(scope="module")
def outcomes(live: Evaluator) -> dict[str, Measurement]:
    found = dict(evaluate(live, range(len(live.space))))
    return {str(live.space[index]["fault"]): outcome for index, outcome in found.items()}


@pytest.mark.slow
def test_a_right_softmax_is_timed_against_a_copy(live: Evaluator, outcomes: dict[str, Measurement]) -> None:
    right = outcomes["nothing"]

    assert live.library == COPY
    assert right.ok, right.error
    assert right.timing is not None
    assert right.timing.ratio > 1  # nothing is faster than the copy
    assert right.timing.library_us == live.library_us()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("last_is_missed", "relative error|is off by"),  # inputs are drawn anew, and either may be the first to be seen
        ("maximum_is_forgotten", "relative error nan"),
        ("row_too_many", "it wrote outside its output"),
        ("eight_too_many", "it wrote outside its output"),
    ],
)
def test_a_wrong_softmax_is_found_out(outcomes: dict[str, Measurement], fault: str, reason: str) -> None:
    assert outcomes[fault].status is Status.WRONG
    assert re.search(reason, outcomes[fault].error)


def test_a_search_says_what_share_of_the_bandwidth_it_found(
    live: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, "host", live.device)
    options = TuneOptions("random", 0, Budget(trials=1), tmp_path, race=RaceOptions(looks=1, look=2))
    result = run_study(live, options).to_dict()

    best = result["best"]
    assert best["bandwidth_fraction"] == best["speedup_over_library"]
    assert best["terabytes_per_second"] == pytest.approx(2 * 64 * 256 * 2 / best["time_us"] / 1e6)
    assert "tflops" not in best
    assert result["library"]["name"] == COPY
    assert result["roofline_us"] == pytest.approx(2 * 64 * 256 * 2 / 1e10 * 1e6)
    assert " a copy " in result["race"]["verdict"]
