"""The kernels of the second space that are worth having in a store: how they are chosen, and what is shipped."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.portfolio import Regrets
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.stocked_kernels import chosen, pools
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
TEMPLATE, H200 = find_template("gemm_streamk_sm90"), find_device("h200")


def test_what_is_shipped_is_what_was_chosen() -> None:
    shipped = json.loads(files("tilescout.spaces.gemm_streamk_sm90").joinpath("stock.json").read_text())
    record = Record.read(RESULTS / "stream-k-2026-11-28" / "stocked-kernels.json.gz").result
    assert shipped["knobs"] == record["knobs"] == [knob.name for knob in TEMPLATE.knobs]
    assert shipped["of"] == {signature: of["kernels"] for signature, of in record["of"].items()}


def test_kernels_that_were_the_fastest_are_chosen_and_the_one_that_is_expected_to_be() -> None:
    path = shipped_model(TEMPLATE.name, H200.name)
    assert path is not None
    model, problem = load_model(path)[0], GemmProblem.parse("425x14336x12288:bf16")
    codes = TEMPLATE.space(problem, H200).codes[::5_000]
    logs = np.full((len(codes), 2), 0.5)
    logs[3, 0] = logs[5, 1] = 0.0
    rows = [tuple(each) for each in codes.tolist()]
    drawn = pools(TEMPLATE, model, [problem], 0, rows)
    picked = chosen(TEMPLATE, model, Regrets(tuple(rows), (problem, problem), logs, "invented"), drawn, 3)
    assert set(picked) == {rows[3], rows[5], tuple(drawn[0].codes[drawn[0].logs.argmin()].tolist())}
