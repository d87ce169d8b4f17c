"""The best of every problem of a table: what the pages of the results state."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies.best_of_table import main
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"


@pytest.mark.parametrize("name", ["bf16", "e4m3", "spread"])
def test_the_page_states_what_the_shipped_table_gives(name: str, tmp_path: Path) -> None:
    [path] = [path for path in shipped_tables() if path.stem == f"gemm_sm90-h200-{name}"]

    done = CliRunner().invoke(main, [str(path), "--out", str(tmp_path / "best.json")])

    assert done.exit_code == 0, done.output
    printed, page = done.output.strip(), (RESULTS / "best-of-gemm.md").read_text()
    if name != "spread":
        assert printed in page
    else:  # the page has some of its problems, and what is below the last
        lines = printed.splitlines()
        problems = {line.split(" | ")[0] for line in lines[2:]}
        stated = [line for line in page.splitlines() if line.split(" | ")[0] in problems]
        assert set(stated) <= set(lines)
        assert len(stated) > 2
        assert stated[-2:] == lines[-2:]
    result = json.loads((tmp_path / "best.json").read_text())["result"]
    published = json.loads((RESULTS / "tables-2026-11-22" / f"best-{name}.json").read_text())["result"]
    assert result["problems"] == published["problems"]
    assert len(result["problems"]) == len(Table.read(path).problems)
    # Another processor's logarithms differ in their last bit.
    assert list(result["means"]) == list(published["means"])
    assert all(result["means"][of] == pytest.approx(interval, rel=1e-12) for of, interval in published["means"].items())
