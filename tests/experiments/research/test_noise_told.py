"""A search says that times are noise where they were dealt out at random, and not where they follow from the knobs."""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.noise_told import told
from tilescout.search.tables.result_forms import Told
from tilescout.search.tables.results import read_results
from tilescout.search.tables.table import write_table


def test_noise_is_told_from_a_kernel(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    knobs = list(itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8), (1, 2, 4), (0, 1)))
    smooth = [1 + abs(np.log2(x) - 6) / 4 + y / 16 + z / 8 + cached / 4 for x, y, z, cached in knobs]
    dealt = np.random.default_rng(1).permutation(smooth)
    paths = []
    for name, times in (("kernel", smooth), ("noise", dealt)):
        rows = [
            {**dict(zip("xyzc", map(int, row), strict=True)), "time": float(time)}
            for row, time in zip(knobs, times, strict=True)
        ]
        Path(tmp_path, f"{name}-list.json").write_text(json.dumps(rows))
        card, data = read_results(Path(tmp_path, f"{name}-list.json"), Told(kernel=name, device="A GPU", problem="64"))
        paths.append(write_table(tmp_path / f"{name}.parquet", card, data).path)
    found = [told(path, "64", 0) for path in paths]
    assert {one.table: one.doubted for one in found} == {"kernel": False, "noise": True}
    out = tmp_path / "told.json"
    Record.of("noise-told", "", {"searches": [asdict(one) for one in found]}).write(out)
    study("noise-told", "--again", str(out))
    assert "say that times may be noise" in capsys.readouterr().out
