"""Figures from nested mappings by short expressions."""

import pytest

from tilescout.experiments.research.claims.expressions import evaluate

FOUND = {
    "trials": 60,
    "problems": {
        "1x1": {"kind": "decode", "took": 2.0, "best": 1.0, "within": 3, "ours, out=": 7.0},
        "2x2": {"kind": "odd", "took": 8.0, "best": 2.0, "within": None, "ours, out=": 9.0},
    },
    "three": [1, 2, 3],
    "runs": [{"gpus": 1, "rate": 100.0}, {"gpus": 4, "rate": 300.0}],
    "each": [{"how": "a", "of": 1, "s": 5.0}, {"how": "a", "of": 2, "s": 6.0}, {"how": "b", "of": 2, "s": 7.0}],
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("trials", 60.0),
        ("problems/1x1/took", 2.0),
        ("problems/1x1/ours, out=", 7.0),
        ("runs/1/rate", 300.0),
        ("runs/gpus=4/rate over runs/gpus=1/rate", 3.0),
        ("problems/kind=odd/took", 8.0),
        ("each/how=a&of=2/s", 6.0),
        ("count of problems/*", 2.0),
        ("count of problems/*/kind", 2.0),
        ("problems", 2.0),
        ("geometric mean of problems/*/took", 4.0),
        ("mean of problems/*/took", 5.0),
        ("largest of problems/*/took over problems/*/best", 4.0),
        ("largest of 1 over problems/*/took", 0.5),
        ("sum of problems/*/took above 2", 1.0),
        ("least percentage of problems/*/took above 0", 100 * 0.025**0.5),
        ("largest percentage of problems/*/took above 1000", 100 * (1 - 0.025**0.5)),
        ("sum of problems/*/took below 2.5", 1.0),
        ("sum of problems/*/within above 60", 1.0),
        ("sum of problems/*/took minus 1 times 2", 16.0),
        ("sum of problems/*/took plus problems/*/best", 13.0),
    ],
)
def test_an_expression_tells_a_number(expression: str, value: float) -> None:
    assert evaluate(expression, FOUND) == pytest.approx(value)


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("problems/3x3/took", "3x3"),
        ("problems/kind=wide/took", "nothing at"),
        ("problems/*/took", "2 values"),
        ("each/how=b&of=1/s", "nothing at"),
        ("problems/1x1/kind", "no number"),
        ("problems/1x1/took/deeper", "deeper"),
        ("sum of problems/*/took over three/*", "2 values over 3"),
        ("__import__('os').system('true')", "__import__"),
    ],
)
def test_an_expression_that_finds_no_number_is_refused(expression: str, fault: str) -> None:
    with pytest.raises((LookupError, TypeError, ValueError), match=fault.replace("(", r"\(")):
        evaluate(expression, FOUND)
