"""cuBLASLt's own algorithms on a GPU: listed, verified, timed; its first guess is what torch runs."""

from pathlib import Path

import numpy as np
import pytest

from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.local import LocalEngine
from tilescout.spaces.cublaslt import FAST, TEMPLATE
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import of_any_problem

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "text",
    ["2048x2048x2048:bf16", "512x512x512:fp16:mn", "257x2056x1024x2:bf16", "1024x1024x1024:bf16:bias+gelu",
     "1024x1024x1024:bf16:alpha+bias+relu", "1024x1024x1024:e4m3-bf16:bias",
     "1024x1024x1024:e4m3-bf16:fast"],
)  # fmt: skip
def test_the_librarys_guesses_are_right_and_the_first_takes_the_time_of_torch(text: str, tmp_path: Path) -> None:
    problem = GemmProblem.parse(text)
    with LocalEngine(of_any_problem(TEMPLATE), tmp_path) as engine, Evaluator(engine, problem) as evaluator:
        guesses = np.flatnonzero(evaluator.space.columns["guess"] > 0)
        outcomes = dict(evaluate(evaluator, guesses.tolist()[:8]))
        default = evaluator.space.index(engine.default(evaluator.problem))

    assert all(outcome.ok for outcome in outcomes.values()), [outcome.error for outcome in outcomes.values()]
    assert engine.versions["cublaslt"].count(".") == 2
    timing = outcomes[default].timing
    assert timing is not None
    if not problem.epilogue:
        assert 0.7 < timing.ratio < 1.3


def test_fast_accumulation_has_algorithms_too(tmp_path: Path) -> None:
    problem = GemmProblem(1024, 1024, 1024, dtype="e4m3")
    with LocalEngine(of_any_problem(FAST), tmp_path) as engine, Evaluator(engine, problem) as evaluator:
        [(_, outcome)] = evaluate(evaluator, [evaluator.space.index(engine.default(problem))])

    assert outcome.ok, outcome.error
