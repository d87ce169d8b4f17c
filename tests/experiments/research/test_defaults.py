"""The defaults of the GEMM are fitted to tables, judged on shapes left out, never on what judges them last."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.boosting import BoostingOptions
from tilescout.experiments.research.defaults_fit import (
    FitOptions,
    Recorded,
    chosen,
    drawn_problems,
    fit,
    pool,
    read,
)
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.defaults import checked, the_subspace
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.defaults import read_defaults
from tilescout.spaces.gemm_sm90.template import KNOBS, TEMPLATE

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
UNSEEN = RESULTS / "out-of-sample-2026-11-22" / "gemm_sm90-h200-out-of-sample.parquet"
PROBLEMS = ("4096x4096x4096", "1024x1024x1024", "16x4096x4096")
QUICK = FitOptions(
    kernels=8, drawn=4, rows=60, members=1, boosting=BoostingOptions(trees=8, levels=3, rate=0.4, bins=8)
)


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    return part_of_table(*PROBLEMS, rows=900)


@pytest.fixture(scope="module")
def problems(table: Table) -> list[Recorded]:
    return read([table], the_subspace())


@pytest.mark.slow
def test_what_is_read_are_the_recorded_times_within_the_sub_space(table: Table, problems: list[Recorded]) -> None:
    for one in problems:
        inside = the_subspace().holds(TEMPLATE.space(one.problem, one.device))
        space = TEMPLATE.space(one.problem, one.device)
        assert one.logs.min() == 0
        assert len(set(one.rows)) == len(one.rows) == len(one.logs)
        for row, log in list(zip(one.rows, one.logs.tolist(), strict=True))[::50]:
            configuration = dict(zip([knob.name for knob in KNOBS], row, strict=True))
            assert inside[space.index(configuration)]
            place = table.row(configuration, one.problem)
            assert place is not None
            if np.isfinite(table.times_us[place]):
                best = table.card.baselines[one.problem].library_us / one.best
                assert log == pytest.approx(np.log(table.times_us[place] / best))


def test_candidates_were_recorded_wherever_they_are_legal(problems: list[Recorded]) -> None:
    found = pool(problems, 2)
    assert 0 < len(found) < len({row for one in problems for row in one.rows})
    for row in found[::20]:
        configuration = dict(zip([knob.name for knob in KNOBS], row, strict=True))
        for one in problems:
            assert (row in one.rows) == (configuration in TEMPLATE.space(one.problem, one.device))


def test_a_fit_is_reproducible_and_chooses_what_was_recorded(problems: list[Recorded]) -> None:
    first, second = fit(problems, QUICK, {}), fit(problems, QUICK, {})
    assert first.portfolios == second.portfolios
    assert len(first.portfolios[2]) == QUICK.kernels
    for one in problems:
        reached = [log for row, log in zip(one.rows, one.logs.tolist(), strict=True) if row in first.portfolios[2]]
        assert chosen(one, first) == chosen(one, second)
        assert min(reached) <= chosen(one, first) <= max(reached)


def test_random_problems_are_legal_for_the_kernels_and_drawn_from_the_seed() -> None:
    for signature in ("bf16", "e4m3"):
        first, again, other = (list(drawn_problems(signature, 20, seed)) for seed in (1, 1, 2))
        assert first == again != other
        for problem in first:
            TEMPLATE.check(problem)


def test_no_default_is_chosen_on_what_judges_it() -> None:
    with pytest.raises(TableError, match="no default is chosen on it"):
        checked([Table.read(UNSEEN)])


def test_the_study_writes_defaults_and_says_how_good_they_are(
    study: Callable[..., None], table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tilescout.experiments.research.studies.defaults.FitOptions", lambda kernels, seed: QUICK, raising=True
    )
    monkeypatch.chdir(tmp_path)

    study("defaults", str(table.path), "--folds", "3", "--kernels", "8", "--write", "own.npz", "--out", "own.json")

    written = read_defaults(tmp_path / "own.npz", KNOBS)
    assert written.source == {table.path.name: table.card.sha256}
    result = Record.read(tmp_path / "own.json").result
    assert set(result) == {f"{problem}:bf16" for problem in PROBLEMS}
    assert all(one["held_out"] >= 1 and one["best"] > 0.9 for one in result.values())


def test_the_shipped_defaults_are_recorded_on_the_problems_that_judge_them() -> None:
    table = Table.read(UNSEEN)
    for problem in table.problems:
        assert isinstance(problem, GemmProblem)
        assert table.row(TEMPLATE.default(problem, DEVICES["h200"]), problem) is not None
