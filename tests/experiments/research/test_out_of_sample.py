"""The figures of the problems that nothing was chosen on, from the table that was recorded of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.costmodel.persistence import load_model
from tilescout.experiments.research.studies.out_of_sample import checked_model, main, search, speeds, training_of
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import ModelError
from tilescout.spaces.suite import find_suite

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
TABLE = RESULTS / "out-of-sample-2026-11-22" / "gemm_sm90-h200-out-of-sample.parquet"


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.read(TABLE)


def test_the_table_holds_the_problems_of_the_suite_and_what_both_regimes_told(table: Table) -> None:
    assert list(map(str, table.problems)) == find_suite("out-of-sample").problems
    assert all("out-of-sample" not in path.stem for path in shipped_tables())  # or a model would be trained on it
    for one in speeds(table):
        assert one.kind in ("decode", "prefill", "odd", "wide", "deep-k")
        assert one.default <= one.best  # measured together
        assert one.default_alone <= one.best_alone


def test_the_figures_are_printed_and_written(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"

    done = CliRunner().invoke(main, [str(TABLE), "--out", str(out)])

    assert done.exit_code == 0, done.output
    means = json.loads(out.read_text())["result"]["speed"]
    assert means["all"]["best"][0] == pytest.approx(1.106, abs=5e-4)
    assert means["all"]["default"][0] == pytest.approx(0.908, abs=5e-4)
    assert means["all"]["today_alone"][0] == pytest.approx(1.056, abs=5e-4)
    for mean, low, high, least, largest in (each[name] for each in means.values() for name in ("best", "default")):
        assert least <= low <= mean <= high <= largest


def test_a_model_that_was_trained_on_a_problem_of_the_table_is_refused(table: Table) -> None:
    [known] = [path for path in shipped_tables() if path.stem == "gemm_sm90-h200-bf16"]

    assert checked_model(table).is_file()
    with pytest.raises(ModelError, match="was trained on"):
        checked_model(Table.read(known))
    with pytest.raises(ModelError, match="was trained on 257x2056x7176:bf16"):
        checked_model(table, checked_model(table), ["257x2056x7176:bf16"])


@pytest.mark.parametrize("sampler", ["guided", "random"])
def test_a_search_is_replayed_the_default_first(sampler: str) -> None:
    named, found = search(TABLE, "1x5120x1280:bf16", sampler, 0, 12)

    assert (named, found.problem) == (sampler, "1x5120x1280:bf16")
    assert 0 <= found.regret < 0.2  # the default is 13 % behind the best
    assert np.isfinite(found.gpu_seconds)
    assert found.gpu_seconds < found.exhaustive_gpu_seconds / 20


def test_the_cost_of_the_shipped_model_is_that_of_every_table_that_it_learned_from(table: Table) -> None:
    path = checked_model(table)
    _, card = load_model(path)
    training = training_of(path)
    assert training.table.split(", ") == [known.name for known in card.tables]
    shipped = sum(float(np.asarray(Table.read(each).data["gpu_seconds"]).sum()) for each in shipped_tables())
    assert training.gpu_seconds > shipped  # tables of the results are among those that it learned from
