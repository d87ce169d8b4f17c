"""The ledger of figures: the documents state what it holds, and it holds what its data say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.research.claims.check import contradictions, misstated, passages_gone, without_reason
from tilescout.experiments.research.claims.documents import Document
from tilescout.experiments.research.claims.ledger import Figure, Statement
from tilescout.experiments.research.claims.reading import read_ledger
from tilescout.experiments.research.claims.recomputations import Recomputing, changed_data
from tilescout.experiments.research.claims.verdicts import judge

ROOT = Path(__file__).resolve().parents[4]
LEDGER_HERE = read_ledger(ROOT)
README = Document.parse("README.md", (ROOT / "README.md").read_text(encoding="utf-8")).text

LONG = {
    "unseen-searches",
    "race-coverage",
    "race-designs",
    "spaces",
    "replayed",
    "dispatch-left-out",
    "dispatch-halves",
}
"""Recomputations that take seconds or minutes: `make claims` runs them."""


def faults(readme: str) -> list[str]:
    document = Document.parse("README.md", readme)
    return [*passages_gone(document, LEDGER_HERE), *without_reason(document, LEDGER_HERE)]


def test_every_figure_of_every_document_stands_in_the_ledger_as_it_is_stated() -> None:
    found = contradictions(ROOT, LEDGER_HERE)
    assert not found, "\n".join(found)


def test_the_data_are_the_files_that_the_ledger_names() -> None:
    assert changed_data(ROOT, LEDGER_HERE) == {}


@pytest.fixture(scope="module")
def recomputing() -> Recomputing:
    return Recomputing(ROOT, LEDGER_HERE)


QUICK = [claim for claim in LEDGER_HERE.claims.values() if claim.recompute not in LONG]


@pytest.mark.slow
@pytest.mark.parametrize("source", sorted({claim.recompute for claim in QUICK}))
def test_what_is_recomputed_is_what_the_ledger_holds_and_the_documents_state(
    source: str, recomputing: Recomputing
) -> None:
    claims = [claim for claim in QUICK if claim.recompute == source]
    verdicts = [verdict for claim in claims for verdict in judge(LEDGER_HERE, claim, recomputing.values(claim))]
    assert verdicts
    assert not [verdict for verdict in verdicts if not verdict.holds]


def test_what_takes_minutes_agrees_with_the_figures_that_were_written_beside_the_data() -> None:
    written = json.loads((ROOT / LEDGER_HERE.data["heats-1"].path).with_name("coverage.json").read_text())["result"]
    intervals, held = written["problems"]["all"]["over the default"]["other host"]
    assert LEDGER_HERE.claims["race-coverage"].values["default_host"] == pytest.approx(100 * held / intervals, rel=1e-5)

    searched = ROOT / "experiments/results/stop-rule-2026-11-30/out-of-sample.json"
    written = json.loads(searched.read_text())["result"]
    shipped = shipped_model("gemm_sm90", "h200")
    assert shipped is not None
    # Whoever ships another model searches anew, and writes what README then states.
    assert written["training"]["sha256"] == load_model(shipped)[1].sha256
    values, figures = LEDGER_HERE.claims["unseen-search"].values, written["figures"]["guided"]
    assert values["within_median"] == figures["within_median"]
    assert values["within_90"] == figures["within_90"]
    assert values["mean"] == figures["stopped_mean"]
    off = [one for one in written["searches"] if one["regret"] > 0.01]
    assert values["missed"] == len(off)
    assert values["off"] == sum(one["stopped"] is not None for one in off)  # the rule promises for what it ended alone
    assert values["pays"] == figures["break_even_searches"]
    assert values["times"] == pytest.approx(figures["gpu_time_ratio"], rel=1e-5)
    speeds = LEDGER_HERE.claims["unseen-speed"].values
    ends = ("", "_low", "_high", "_least", "_largest")  # the default that is stated is another one by now
    assert [speeds[f"best{end}"] for end in ends] == pytest.approx(written["speed"]["all"]["best"], rel=1e-5)


def test_readme_states_the_speeds_of_unseen_problems_with_their_intervals() -> None:
    claim = LEDGER_HERE.claims["unseen-speed"]
    (table,) = (one for one in claim.statements if one.documents == ("README.md",))
    assert [figure.key for figure in table.figures] == list(claim.values)
    assert {"best_low", "best_high", "default_low", "default_high"} <= set(claim.values)


@settings(max_examples=60, deadline=None)
@given(
    number=st.one_of(st.decimals(0, 2000, places=3).map(str), st.integers(0, 2_000_000).map("{:,}".format)),
    sentence=st.sampled_from(
        (
            "It is {} times as fast.",
            "This takes {} µs (H200).",
            "That saves {} % of the time.",
            "Some {} rows were recorded.",
            "| speed | {} |",
            "It moves **{}** GB/s.",
            "It is {}× as fast.",
            "[It takes {} s](docs/tutorial.md).",
        )
    ),
    at=st.integers(0, README.count(". ") - 1),
)
def test_a_figure_that_is_planted_in_readme_is_found(number: str, sentence: str, at: int) -> None:
    sentences = README.split(". ")
    planted = ". ".join([*sentences[:at], sentence.format(number), *sentences[at:]])
    assert any(f"the ledger lacks {number} in" in fault for fault in faults(planted))


STATED = [
    (claim.name, statement, figure)
    for claim, statement in LEDGER_HERE.statements()
    for figure in statement.figures
    if "README.md" in statement.documents
]


@pytest.mark.parametrize(("name", "statement", "figure"), STATED, ids=lambda one: getattr(one, "key", "in"))
def test_a_changed_digit_of_readme_is_found(name: str, statement: Statement, figure: Figure) -> None:
    other = figure.digits[:-1] + str((int(figure.digits[-1]) + 1) % 10)
    changed = statement.text[: figure.start] + other + statement.text[figure.end :]
    readme = README.replace(statement.text, changed)
    assert readme != README
    assert any("does not state" in fault for fault in faults(readme))

    # Nor does it help to change the passage in the ledger too.
    marked = f"{statement.text[: figure.start]}{{{figure.claim}.{figure.key}:{other}}}{statement.text[figure.end :]}"
    told = replace(LEDGER_HERE.claims[name], statements=(Statement.parse(name, ("README.md",), marked),))
    (found,) = misstated(replace(LEDGER_HERE, claims={**LEDGER_HERE.claims, name: told}))
    assert f"stated is {other}" in found


@pytest.mark.parametrize(
    "qualifier",
    [
        "On the 40 unseen",
        "unseen problems of published models (no default, model or rule was chosen with them)",
        ", on H200s in bf16",
        ", no search",
        "with a model that never saw them, ",
        " on average, more",
    ],
)
def test_a_figure_of_readme_that_loses_its_qualifier_is_found(qualifier: str) -> None:
    assert not faults(README)
    assert README.count(qualifier) == 1
    assert any("does not state" in fault for fault in faults(README.replace(qualifier, "")))


def test_figures_that_are_in_sample_may_not_be_stated_without_saying_so() -> None:
    assert LEDGER_HERE.claims["defaults"].says == ("in-sample",)
