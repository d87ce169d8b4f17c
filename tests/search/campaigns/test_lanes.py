"""Which problem a GPU turns to in a campaign."""

from collections import deque
from pathlib import Path

from tilescout.search.build.artifacts import Artifact
from tilescout.search.campaigns.lanes import Lane, Work, next_work
from tilescout.spaces.gemm import GemmProblem

ARTIFACT = Artifact(Path("kernel.so"), "", "", None, 0.0)


def work(number: int, ready: int, preparing: bool = False) -> Work:
    waiting = deque((each, ARTIFACT) for each in range(ready))
    return Work(number, GemmProblem(8 * (number + 1), 8, 8), ready, preparing=preparing, ready=waiting)


def test_a_gpu_stays_with_its_problem_while_something_waits_for_it() -> None:
    works = [work(0, 1), work(1, 100)]
    lane = Lane(0, works[0])
    assert next_work(lane, [lane], works, least=64) is works[0]
    works[0].ready.clear()
    assert next_work(lane, [lane], works, least=64) is works[1]


def test_it_turns_to_the_problem_for_which_the_most_waits() -> None:
    works, lane = [work(0, 5), work(1, 9), work(2, 7)], Lane(0)
    assert next_work(lane, [lane], works, least=1) is works[1]


def test_it_turns_to_no_problem_for_which_too_little_waits() -> None:
    works, lane = [work(0, 5), work(1, 63)], Lane(0)
    assert next_work(lane, [lane], works, least=64) is None
    assert next_work(lane, [lane], works, least=63) is works[1]
    assert next_work(lane, [lane], [], least=1) is None


def test_it_leaves_a_problem_to_the_gpu_that_sets_it_up() -> None:
    works = [work(0, 9, preparing=True), work(1, 5)]
    for lane in (Lane(0), Lane(0, works[0])):
        assert next_work(lane, [lane], works, least=1) is works[1]


def test_it_takes_a_problem_that_fewer_other_gpus_are_at() -> None:
    works = [work(0, 9), work(1, 5)]
    busy, idle, lane = Lane(1, works[0], in_flight=1), Lane(2, works[1]), Lane(0)
    assert next_work(lane, [lane, busy, idle], works, least=1) is works[1]
