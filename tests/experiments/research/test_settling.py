"""The script that tells how long a device must be busy before its times count."""

import numpy as np

from tilescout.experiments.research.studies.settling import SLOWER, slower
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table

TABLE = Table.read(shipped_tables()[1])


def test_slower_configurations_are_timed_ones_clearly_behind_the_best_and_all_over_the_table() -> None:
    problem = TABLE.problems[0]
    rows = TABLE.rows(problem)
    rank = {TABLE.configuration(int(row)): at for at, row in enumerate(rows)}
    times = TABLE.times_us[rows] / TABLE.times_us[rows].min()

    found = [rank[configuration] for configuration in slower(TABLE, problem, 6)]

    assert len(set(found)) == 6
    assert ((times[found] > SLOWER[0]) & (times[found] < SLOWER[1])).all()
    assert np.ptp(found) > len(rows) / 2
