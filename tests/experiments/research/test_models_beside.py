"""Models that are compared on rows of a table: on problems that none of them learned from, and on no others."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.persistence import save_model
from tilescout.experiments.research.studies.models_beside import main
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import card_of, samples_of
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import find_template

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
TABLE = RESULTS / "stream-k-2026-11-30" / "gemm_sm90-h200-searched-1001-bf16.parquet"
LEARNED = {"few": slice(0, 20), "many": slice(10, 60)}
"""Of which of the table's problems each model learns."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    table = Table.read(TABLE)
    samples = samples_of(table, find_template("gemm_sm90"))
    made = []
    for name, some in LEARNED.items():
        folder = tmp_path_factory.mktemp("models") / name
        folder.mkdir()
        model = ForestModel(ForestOptions(trees=2)).fit(samples[some])
        save_model(folder / "gemm_sm90-h200.npz", model, card_of([table], samples[some]))
        made.append(folder)
    return made


@pytest.mark.slow
def test_models_are_judged_on_the_problems_that_none_learned_from(folders: list[Path], tmp_path: Path) -> None:
    options = [part for folder in folders for part in ("--models", str(folder))]

    done = CliRunner().invoke(main, [str(TABLE), *options, "--out", str(tmp_path / "beside.json")])

    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "beside.json").read_text())["result"][TABLE.name]
    assert list(found) == [str(problem) for problem in Table.read(TABLE).problems[60:]]
    assert all(set(each["models"]) == set(LEARNED) for each in found.values())
    behind = [each["models"]["many"]["regret"] for each in found.values()]
    assert all(0 <= one["10"] <= one["5"] <= one["1"] for one in behind)


@pytest.mark.slow
def test_a_table_that_a_model_learned_from_whole_is_refused(folders: list[Path], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    table = Table.read(TABLE)
    samples = samples_of(table, find_template("gemm_sm90"))
    save_model(
        whole / "gemm_sm90-h200.npz",
        ForestModel(ForestOptions(trees=1)).fit(samples[:5]),
        card_of([table], samples),
    )

    done = CliRunner().invoke(main, [str(TABLE), "--models", str(folders[0]), "--models", str(whole)])

    assert isinstance(done.exception, ModelError)
    assert "leave some out" in str(done.exception)
    twice = CliRunner().invoke(main, [str(TABLE), "--models", str(folders[0]), "--models", str(folders[0])])
    assert isinstance(twice.exception, ModelError)
    assert "rename one" in str(twice.exception)
