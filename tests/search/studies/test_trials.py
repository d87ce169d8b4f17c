"""The trials of a study in its journal: what it survives, and what a resumed search finds."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.order import asked_before, in_order
from tilescout.search.studies.journal_folder import JournalFolder, open_study
from tilescout.search.studies.study_store import latest, unused
from tilescout.search.studies.trials import (
    MEASUREMENT,
    PLACE,
    SEEN,
    Count,
    count_of,
    finished_trials,
    mark,
    record_outcome,
    recover,
    was_tried,
)
from tilescout.spaces.checksums import Chain
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

CREATE_TRIAL = 4  # optuna's code of the record that makes a trial


@pytest.fixture
def space() -> SearchSpace:
    return find_template("gemm_sm90").space(GemmProblem(1024, 1024, 1024), find_device("h200"))


def measured(ratio: float) -> Measurement:
    return Measurement(
        Status.OK, timing=Timing(ratio, ratio, ratio, ratio, ratio, library_us=10.0, pairs=3), gpu_seconds=0.5
    )


def ask(study: optuna.Study, space: SearchSpace, index: int) -> optuna.Trial:
    study.enqueue_trial(dict(zip(distributions(space), map(int, space.codes[index]), strict=True)))
    return study.ask({**distributions(space)})


def opened(path: Path) -> AbstractContextManager[optuna.Study]:
    return open_study(path, RandomSampler(seed=0))


def test_outcomes_are_read_back_by_another_process(tmp_path: Path, space: SearchSpace) -> None:
    path = tmp_path / "study.journal"
    outcomes = [measured(1.5), Measurement(Status.WRONG, "relative error 1"), measured(0.9)]
    with opened(path) as study:
        for index, outcome in enumerate(outcomes):
            record_outcome(study, ask(study, space, index), outcome)

    with opened(path) as again:
        trials = finished_trials(again, space)

    assert [trial.measurement for trial in trials] == outcomes
    assert [trial.index for trial in trials] == [0, 1, 2]
    assert [trial.configuration for trial in trials] == [space[0], space[1], space[2]]
    assert all(trial.started <= trial.finished for trial in trials)


def test_the_value_of_a_trial_is_its_time_and_a_failure_has_none(tmp_path: Path, space: SearchSpace) -> None:
    with opened(tmp_path / "study.journal") as study:
        record_outcome(study, ask(study, space, 0), measured(1.5))
        record_outcome(study, ask(study, space, 1), Measurement(Status.CRASH, "died"))
        assert study.trials[0].value == pytest.approx(15.0)
        assert study.trials[1].state is TrialState.FAIL


def test_a_pruned_trial_is_pruned_for_optuna_too_and_its_value_is_the_pilot(tmp_path: Path, space: SearchSpace) -> None:
    path = tmp_path / "study.journal"
    pruned = Measurement(Status.PRUNED, pilot_us=42.5, gpu_seconds=0.1, verify_seconds=0.1)
    with opened(path) as study:
        record_outcome(study, ask(study, space, 0), measured(1.5))
        record_outcome(study, ask(study, space, 1), pruned)

    with opened(path) as again:
        assert [trial.state for trial in again.trials] == [TrialState.COMPLETE, TrialState.PRUNED]
        assert again.trials[1].value == 42.5
        assert again.best_trial.number == 0
        assert [trial.measurement for trial in finished_trials(again, space)] == [measured(1.5), pruned]
        assert not pruned.failed


def test_a_pruned_trial_whose_outcome_was_stored_is_finished_as_pruned(tmp_path: Path, space: SearchSpace) -> None:
    path = tmp_path / "study.journal"
    pruned = Measurement(Status.PRUNED, pilot_us=42.5)
    with opened(path) as study:
        ask(study, space, 0).set_user_attr(MEASUREMENT, pruned.to_dict())

    with opened(path) as again:
        assert recover(again, space) == 0
        assert again.trials[0].state is TrialState.PRUNED
        assert again.trials[0].value == 42.5


def test_a_trial_that_is_told_when_its_search_has_ended_has_its_place_behind_all_others(space: SearchSpace) -> None:
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    lost = [ask(study, space, index) for index in range(3)]
    for trial in lost[:2]:
        trial.set_user_attr(MEASUREMENT, measured(0.5).to_dict())
    mark(study, lost[0], PLACE, Count(1, "a joint search"))  # it was killed before it told it
    for index in range(3, 6):  # another tuner goes on
        trial = ask(study, space, index)
        mark(study, trial, SEEN, Count(index - 3))
        mark(study, trial, PLACE, Count(index - 2))
        record_outcome(study, trial, measured(1.0))

    assert recover(study, space, lambda trial: trial.number < 3) == 1
    told = [trial for trial in study.trials if was_tried(trial) and trial.state.is_finished()]
    assert [trial.number for trial in in_order(told, lambda trial: trial)] == [3, 4, 5, 0, 1]
    assert [count_of(study.trials[number], PLACE) for number in (0, 1)] == [Count(4), Count(5)]
    assert asked_before(study.trials[5], study.trials[0])


def test_a_record_cut_off_at_the_end_is_dropped_and_the_rest_kept(tmp_path: Path, space: SearchSpace) -> None:
    path = tmp_path / "study.journal"
    with opened(path) as study:
        record_outcome(study, ask(study, space, 0), measured(1.5))
        whole = path.read_bytes()
        record_outcome(study, ask(study, space, 1), measured(1.2))
    path.write_bytes(path.read_bytes()[: len(whole) + 25])

    with opened(path) as again:
        recover(again, space)
        record_outcome(again, ask(again, space, 2), measured(1.1))
        assert [trial.index for trial in finished_trials(again, space)] == [0, 2]


def test_damage_before_the_end_is_refused_with_a_clear_line(tmp_path: Path, space: SearchSpace) -> None:
    path = tmp_path / "study.journal"
    with opened(path) as study:
        record_outcome(study, ask(study, space, 0), measured(1.5))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{broken\n", *lines[3:]]))
    with pytest.raises(StoreError, match="damaged"), opened(path):
        pass
    with pytest.raises(StoreError, match="damaged"):
        JournalFolder(tmp_path).read("study")


def test_a_folder_that_can_not_be_made_is_refused_with_a_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another folder"), opened(tmp_path / "file" / "study.journal"):
        pass


def test_a_trial_whose_outcome_was_stored_is_finished_and_any_other_tried_again(
    tmp_path: Path, space: SearchSpace
) -> None:
    path = tmp_path / "study.journal"
    with opened(path) as study:
        stored = ask(study, space, 0)
        stored.set_user_attr(MEASUREMENT, measured(1.5).to_dict())
        ask(study, space, 1)

    with opened(path) as again:
        assert recover(again, space) == 1
        assert [trial.index for trial in finished_trials(again, space)] == [0]
        assert again.trials[0].value == pytest.approx(15.0)
        trial = again.ask({**distributions(space)})
        assert int(space.find([trial.params[knob.name] for knob in space.knobs])) == 1


def test_a_study_held_by_a_killed_process_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    program = (
        "import sys, time; from pathlib import Path; from optuna.samplers import RandomSampler\n"
        "from tilescout.search.studies.journal_folder import open_study\n"
        "with open_study(Path(sys.argv[1]), RandomSampler()): print('held', flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(StoreError, match="another process is searching the study"), opened(path):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    started = time.monotonic()
    with opened(path):
        assert time.monotonic() - started < 20  # optuna's own lock would wait for 30 s


def test_names_are_numbered_and_the_newest_is_found_again(tmp_path: Path) -> None:
    folder = JournalFolder(tmp_path)
    assert unused(folder.names(), "a") == "a"
    assert latest(folder.names(), "a") == "a"
    for expected in ("a", "a-2", "a-3"):
        assert unused(folder.names(), "a") == expected
        (tmp_path / f"{expected}.journal").write_text("")
        (tmp_path / f"ab-{expected}.journal").write_text("")
        assert latest(folder.names(), "a") == expected


@pytest.mark.parametrize("name", ["user_attrs", "system_attrs"])
@pytest.mark.parametrize("instead", [None, [], [1], "x", 0])
def test_a_trial_whose_attributes_are_something_else_is_refused(
    tmp_path: Path, space: SearchSpace, name: str, instead: object
) -> None:
    path = tmp_path / "s.journal"
    with open_study(path, RandomSampler(seed=0)) as study:
        ask(study, space, 0)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    made = next(record for record in records if record["op_code"] == CREATE_TRIAL)
    made[name] = instead
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))

    with pytest.raises(StoreError, match="damaged"):
        read_and_recover(path, space)


@pytest.mark.parametrize("values", [[15.0], [15.0, 15.0], [], [16.0], "15", ["15"], None])
def test_a_trial_whose_values_are_not_its_time_alone_is_refused(
    tmp_path: Path, space: SearchSpace, values: object
) -> None:
    path = tmp_path / "s.journal"
    with open_study(path, RandomSampler(seed=0)) as study:
        record_outcome(study, ask(study, space, 0), measured(1.5))
    read, written = Chain(), Chain()
    records = [json.loads(read.check(line)) for line in path.read_bytes().splitlines()]
    ended = next(record for record in records if record.get("values"))
    ended["values"] = values
    path.write_bytes(b"".join(written.seal(json.dumps(record).encode()) + b"\n" for record in records))

    if values == [15.0]:
        read_and_recover(path, space)
        return
    with pytest.raises(StoreError, match="damaged"):
        read_and_recover(path, space)


def read_and_recover(path: Path, space: SearchSpace) -> None:
    with open_study(path, RandomSampler(seed=0)) as study:
        finished_trials(study, space)
        recover(study, space)
