"""The leaderboard: strategies are played once, added to those that are there, and the page says what the data hold."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tilescout.experiments.compare import api, play
from tilescout.experiments.compare.play import Run, Trace
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.leaderboard import DATA, main, page
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import StoreError, TilescoutError

ROOT = Path(__file__).parents[3]


def test_the_page_in_the_repository_is_made_of_its_data() -> None:
    written = (ROOT / DATA).with_name("leaderboard.md").read_text()
    assert written == page(Record.read(ROOT / DATA), DATA)


def test_a_page_is_made_of_spaces_on_which_nothing_can_be_gained() -> None:
    record = Record.read(ROOT / DATA)
    name, entry = next(iter(record.result["strategies"].items()))
    flat = {**entry, "all": {**entry["all"], "score": [None] * 3}, "spaces": {}}
    result = {**record.result, "strategies": {name: flat}}
    assert f"| `{name}` | – | – |" in page(replace(record, result=result), DATA)


@pytest.mark.slow
def test_a_strategy_is_added_and_what_is_there_is_not_played_again(
    part_of_table: Callable[..., Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = part_of_table("512x512x512", "1024x1024x1024", rows=60)
    budget = ["--table", str(table.path), "--trials", "12", "--seeds", "2", "--processes", "1"]
    run, played = CliRunner().invoke, list[Run]()

    def run_all(runs: Sequence[Run], *asked: Any) -> Iterator[Trace]:
        played.extend(runs)
        return play.run_all(runs, *asked)

    monkeypatch.setattr(api, "run_all", run_all)
    first = run(main, [*budget, "--samplers", "random", "--out", "a.json"], catch_exceptions=False)
    assert first.exit_code == 0
    assert len(played) == 4  # for the figures of all spaces and of each alone
    before = Record.read(Path("a.json")).result["strategies"]
    added = [*budget, "--again", "a.json", "--samplers", "random,tpe", "--out", "b.json", "--page", "p.md"]
    at = table.data.schema.get_field_index("compile_seconds")  # another version imports the same results otherwise
    column = pa.array(np.asarray(table.data["compile_seconds"]) + 1)
    write_table(table.path, table.card, table.data.set_column(at, table.data.schema.field(at), column))
    second = run(main, added, catch_exceptions=False)
    assert second.exit_code == 0
    assert f"other bytes than those that the others were played on: {table.path.stem}" in second.stderr
    after = Record.read(Path("b.json")).result["strategies"]
    assert after["random"] == before["random"]
    assert list(after) == ["random", "tpe"]
    shown = Path("p.md").read_text()
    for name, entry in after.items():
        assert f"| `{name}` | {entry['all']['score'][0]:.2f} [" in shown
        assert entry["versions"]["tilescout"] in shown
    assert "[`b.json`](b.json): every figure below" in shown
    assert "benchmark hub" not in shown  # which is true of the data in the repository alone
    with pytest.raises(StoreError, match=r"b\.json is there already and is not a leaderboard"):
        run(main, ["--again", "a.json", "--page", "b.json"], catch_exceptions=False)
    assert run(main, ["--again", "b.json", "--page", "q.md"], catch_exceptions=False).exit_code == 0
    assert Path("q.md").read_text() == shown
    with pytest.raises(TilescoutError, match="play on the very same"):
        run(main, [*budget[:-3], "5", *added[6:], "--samplers", "lfbo"], catch_exceptions=False)
