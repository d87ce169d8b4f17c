"""Two real processes choose the same: of one job, and of none."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tilescout.search.autotuning import ranks
from tilescout.search.autotuning.contest import STUDY
from tilescout.search.autotuning.tuner import Tuner
from tilescout.search.export.bundle import Bundle, read_bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import load_templates

KERNELS = Path(__file__).parents[1] / "kernels"

PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
folder, rank, seconds, job, texts = Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5], sys.argv[6:]
import plain_gemm
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.gemm import GemmProblem

def open_engine():
    options = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0))
    return LocalEngine(plain_gemm.TEMPLATE, folder / "artifacts", ("cpu",), plain_gemm.HOST, options)

if job:
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method=f"file://{job}", rank=rank, world_size=2)
store = EvidenceStore(folder / "evidence", {"gpu": "the host"}, plain_gemm.TEMPLATE)
options = TunerOptions(60.0, idle=0.1)
tuner = Tuner(plain_gemm.TEMPLATE, plain_gemm.HOST, store, folder / "artifacts", open_engine, options)
tuner.summary.seconds = options.seconds - seconds
if job and rank:
    dist.barrier()  # the other one asks first
bundle = tuner.decide([Sighting((GemmProblem.parse(text),), False) for text in texts])
if job and not rank:
    dist.barrier()
tuner.close()
print(json.dumps({
    "bundle": str(bundle.path) if bundle else None,
    "tuned": sorted(map(str, tuner.summary.tuned)),
    "unfinished": store.state().unfinished,
}))
"""


def both(folder: Path, seconds: Sequence[float], job: str, *problems: str) -> list[dict[str, object]]:
    """The answers of two processes that run at the same time; this script has no ``__main__`` guard."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    (folder / "program.py").write_text(PROGRAM)
    running = [
        subprocess.Popen(
            [sys.executable, *map(str, (folder / "program.py", KERNELS, folder, rank, budget)), job, *problems],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=alone,
        )
        for rank, budget in enumerate(seconds)
    ]
    ended = [process.communicate(timeout=200) for process in running]
    assert all(process.returncode == 0 for process in running), ended
    return [json.loads(printed) for printed, _ in ended]


@pytest.mark.slow
def test_of_two_processes_one_tunes_and_both_run_the_same(tmp_path: Path, plain_gemm: object) -> None:
    first, second = both(tmp_path, (60.0, 60.0), "", "64x64x64", "32x64x64")
    assert first["bundle"] is not None
    assert first["bundle"] == second["bundle"]
    assert sorted(map(len, (first["tuned"], second["tuned"]))) == [0, 2]  # type: ignore[arg-type]
    bundle = read_bundle(Path(str(first["bundle"])), load_templates(["plain_gemm:TEMPLATE"]))
    assert set(bundle.by_problem) == {GemmProblem(64, 64, 64), GemmProblem(32, 64, 64)}
    for decision in bundle.decisions:
        evidence = decision.evidence
        assert evidence.study == STUDY
        assert evidence.library_us is not None
        assert decision.choice is (Choice.LIBRARY if "not proven to gain" in evidence.reason else Choice.OURS)


@pytest.mark.slow
def test_ranks_of_a_job_choose_the_same_though_one_has_no_time_to_tune(tmp_path: Path) -> None:
    # The rank that asks first has no budget: the other one has, and must not tune what its job runs untuned.
    answers = both(tmp_path, (0.0, 60.0), str(tmp_path / "rendezvous"), "64x64x64")
    told = [answer.pop("unfinished") for answer in answers]
    assert answers == 2 * [{"bundle": None, "tuned": []}]
    assert told[1] == 2, "the code of neither rank is to be found in a cache"


def test_what_is_asked_again_is_answered_anew_and_the_same_in_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    job = HashStore()
    monkeypatch.setattr(ranks, "_job", lambda: job)

    def ask(rank: int, answer: str) -> str:
        monkeypatch.setattr(ranks, "_rank", lambda: rank)
        return ranks.agree("products", lambda: answer, math.inf)

    asked = (0, "once"), (0, "twice"), (1, "never"), (1, "never"), (1, "thrice"), (0, "never")
    told = [ask(rank, answer) for rank, answer in asked]
    assert told == ["once", "twice", "once", "twice", "thrice", "thrice"]


def test_a_rank_waits_for_the_budget_of_another_one_too(
    make_tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    monkeypatch.setattr(
        "tilescout.search.autotuning.tuner.agree", lambda request, answer, seconds, otherwise: waited.append(seconds)
    )
    for budget in (600.0, math.inf):
        tuner = make_tuner(budget)
        tuner.decide([Sighting((GemmProblem(64, 64, 64),), dynamic=False)])
        assert waited.pop() >= budget + tuner.options.patience


SMALL, LARGE = (Sighting((GemmProblem(m, 64, 64),), dynamic=False) for m in (32, 64))
ANY_M = Sighting((GemmProblem(64, 64, 64),), dynamic=True)


def test_a_rank_that_comes_later_runs_what_the_first_did_though_more_is_known_by_then(
    make_tuner: Callable[..., Tuner], decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = HashStore()
    monkeypatch.setattr(ranks, "_job", lambda: job)

    def ask(rank: int) -> list[Bundle | None]:
        monkeypatch.setattr(ranks, "_rank", lambda: rank)
        tuner = make_tuner(seconds=0.0)
        return [tuner.decide(products) for products in ([LARGE], [SMALL, LARGE], [SMALL], [ANY_M])]

    assert ask(0) == 4 * [None]
    decide_for(("64x64x64",))  # all of the first graph, and a part of the second
    assert ask(1) == 4 * [None]
    monkeypatch.setattr(ranks, "_rank", lambda: 2)
    idle = make_tuner(seconds=60.0)
    assert idle.decide([LARGE]) is None
    assert idle.summary.undecided == {LARGE.problems[0]: "the rank of the job that asked first did not decide it"}
    assert all(ask(0)[:2]), "a graph that is compiled again is asked about anew"


def test_graphs_that_differ_in_what_is_dynamic_are_asked_about_apart(
    make_tuner: Callable[..., Tuner], decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = HashStore()
    monkeypatch.setattr(ranks, "_job", lambda: job)
    monkeypatch.setattr(ranks, "_rank", lambda: 0)
    tuner = make_tuner(seconds=0.0)
    assert tuner.decide([LARGE]) is None
    bundle = decide_for(("64x64x64",))
    assert tuner.decide([ANY_M]) == bundle
    monkeypatch.setattr(ranks, "_rank", lambda: 1)  # which compiles them in another order
    tuner = make_tuner(seconds=0.0)
    assert (tuner.decide([ANY_M]), tuner.decide([LARGE])) == (bundle, None)


def test_where_the_rank_that_was_to_decide_fails_all_go_on_with_what_it_knew(
    make_tuner: Callable[..., Tuner], decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, known = HashStore(), decide_for(("64x64x64",))
    monkeypatch.setattr(ranks, "_job", lambda: job)

    def fail(tuner: Tuner, products: object, known: str) -> str:
        decide_for(("32x64x64",))  # it was decided before the failure
        raise StoreError("the disk is full")

    found = []
    for rank in (0, 1):
        monkeypatch.setattr(ranks, "_rank", lambda rank=rank: rank)
        with monkeypatch.context() as failing:
            failing.setattr(Tuner, "_answer", fail)
            found.append(make_tuner(seconds=0.0).decide([SMALL, LARGE]))
    assert found == [known, known]


def test_where_the_store_of_the_job_is_lost_the_rank_that_decides_says_so_and_goes_on(
    make_tuner: Callable[..., Tuner], decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(HashStore):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("the connection was reset\nby a peer")

    job, known = Lost(), decide_for(("64x64x64",))
    monkeypatch.setattr(ranks, "_job", lambda: job)
    monkeypatch.setattr(ranks, "_rank", lambda: 0)
    tuner = make_tuner(seconds=0.0)
    assert tuner.decide([SMALL, LARGE]) == known
    assert "can't be told" in tuner.summary.undecided[SMALL.problems[0]]


def test_a_rank_that_does_not_see_the_store_of_the_others_leaves_its_graph_to_the_library(
    make_tuner: Callable[..., Tuner], decide_for: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    decide_for(("64x64x64",))
    monkeypatch.setattr("tilescout.search.autotuning.tuner.agree", lambda *_: "0" * 64)
    tuner = make_tuner(seconds=0.0)
    assert tuner.decide([LARGE]) is None
    assert "let all ranks see one store" in tuner.summary.undecided[LARGE.problems[0]]
