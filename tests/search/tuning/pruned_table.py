"""A small invented table, and an evaluator that answers from it in the order in which unequal compilers would."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE, DEVICE = find_template("gemm_sm90"), DEVICES["h200"]
PROBLEM = GemmProblem(4096, 4096, 4096)
SPACE = TEMPLATE.space(PROBLEM, DEVICE)
DEFAULT = TEMPLATE.default(PROBLEM, DEVICE)
LIBRARY_US = 200.0


def measured(ratio: float) -> Measurement:
    timing = Timing(ratio, ratio, ratio, ratio * 0.999, ratio * 1.001, LIBRARY_US, 10)
    return Measurement(Status.OK, timing=timing, pilot_us=ratio * LIBRARY_US, gpu_seconds=0.01, verify_seconds=0.001)


def pruned_table(path: Path, card: TableCard) -> Table:
    """The default, 1.2 of the library's time, and 120 others; a tenth is wrong, a few are faster, most far slower."""
    rng = np.random.default_rng(3)
    drawn = [SPACE[int(index)] for index in rng.choice(len(SPACE), 120, replace=False)]
    others = [configuration for configuration in drawn if configuration != DEFAULT]
    rows = [(DEFAULT, PROBLEM, measured(1.2))]
    for number, configuration in enumerate(others):
        wrong = Measurement(Status.WRONG, "relative error 1", gpu_seconds=0.001, verify_seconds=0.001)
        outcome = wrong if number % 10 == 3 else measured(float(0.9 + rng.gamma(1.5, 1.2)))
        rows.append((configuration, PROBLEM, outcome))
    held = replace(card, baselines={PROBLEM: Baseline(DEFAULT, LIBRARY_US)})
    return write_table(path, held, rows)


class ShuffledEvaluator(Evaluator):
    """Answers from a table in a random order, as compilers of unequal speed do; knows what it was told to give up."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(ReplayEngine(table, TEMPLATE, ahead=8), PROBLEM)
        self.rng = np.random.default_rng(seed)
        self.held: list[tuple[int, Measurement]] = []
        self.given_up = self.submitted = self.waits = 0

    def submit(self, index: int, incumbent: float | None = None) -> None:
        self.submitted += 1
        super().submit(index, incumbent)

    def wait(self) -> list[tuple[int, Measurement]]:
        if not self.held:
            self.held = super().wait()
            self.rng.shuffle(self.held)
        self.waits += 1
        return [self.held.pop()]

    def give_up(self) -> None:
        self.given_up += len(self.held)
        self.held = []
        super().give_up()
