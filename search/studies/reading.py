"""Read a study back, without the template, the table or the GPU that it was made with."""

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.exceptions import OptunaError

from tilescout.search.measure.library_best import LibraryBest, Peer
from tilescout.search.measure.measurement import Measurement, check_interval
from tilescout.search.measure.race import Estimate, Race
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.studies.trials import INFO, RESULT, as_record, outcome
from tilescout.spaces.checking import check_types, number_of_key
from tilescout.spaces.checksums import check_sealed
from tilescout.spaces.errors import MALFORMED, ProblemError, SpaceError, StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import NONE_NAMED, Named, find_template
from tilescout.spaces.texts import is_one_line


def study_result(study: optuna.Study, named: Named = NONE_NAMED) -> StudyResult:
    """The result of a study, as far as it has come; see `StudyStore.read`.

    If no search of it has ended, its seconds are those from its first trial to its last.

    Raises
    ------
    StoreError
        If the study is damaged or of a tilescout that did not say what a study is about.
    """
    attributes = study.user_attrs  # copied at each look
    described = attributes.get(INFO)
    if described is None:
        raise StoreError(
            f"study {study.study_name} does not say what it is about: an older tilescout made it; resume its search to "
            "add that"
        )
    try:
        info = StudyInfo.from_dict(described, _problem(described["space"], described["problem"], named))
        trials = _trials(study, info)
        found: Mapping[str, Any] = attributes.get(RESULT) or {}
        check_sealed(found)
        took = max(0.0, trials[-1].finished - trials[0].started) if trials else 0.0  # the clock may be set back
        result = StudyResult(
            info,
            trials,
            seconds=found.get("seconds", took),
            race=_race(found.get("race")),
            not_raced=found.get("not_raced", ""),
            stopped=found.get("stopped", ""),
            library_best=_library_best(found.get("library_best")),
            no_library_best=_no_library_best(found),
            peers=tuple(Peer.from_dict(record) for record in found.get("peers", ())),
            wall=found.get("wall", {}),
        )
        _check(result)
    except (*MALFORMED, OptunaError) as error:
        raise StoreError(f"the study {study.study_name} is damaged ({one_line(error)}); search anew") from error
    return result


def _check(result: StudyResult) -> None:
    """Refuse values that a study can't have: what is not of its type, or not possible.

    Raises
    ------
    TypeError, ValueError
        If there is one.
    """
    check_types(result, (Measurement,))
    info, source = result.info, result.info.provenance
    models = info.model, info.model_object
    for name in (info.name, info.space, info.device, info.sampler, info.library, *models, source.description):
        if not is_one_line(name):
            raise ValueError(f"a name has several lines: {name!r}")
    if result.info.library_us <= 0:
        raise ValueError(f"the library's time is {result.info.library_us} µs")
    roofline = result.roofline
    if roofline is not None:
        roofline.check(result.info.library_us)
        for trial in result.trials:
            roofline.check(trial.measurement.time_us)
    best = result.library_best
    if roofline is not None:
        beside = (
            *([] if best is None else [best.ratio]),
            *(peer.ratio for peer in result.peers if peer.ratio is not None),
        )
        for ratio in beside:
            roofline.check(ratio.value * result.info.library_us)
    race = result.race
    if race is not None:
        known = {trial.index for trial in result.trials if trial.measurement.timing is not None}
        if not {race.winner, race.answer} <= set(race.ratios) <= known or set(race.ran) != set(race.ratios):
            raise ValueError("the race names trials that were not timed")
        elsewhere = () if race.elsewhere is None else (race.elsewhere,)
        for ratio in (*race.ratios.values(), race.over_default, *elsewhere):
            check_interval(ratio.value, ratio.low, ratio.high)
        for trial in result.trials:
            timing = trial.measurement.timing
            if roofline is not None and timing is not None and trial.index in race.ratios:
                roofline.check(race.ratios[trial.index].value * timing.library_us)


def _problem(space: str, text: str, named: Named) -> Problem:
    try:
        return find_template(space, named).parse(text)
    except (SpaceError, ProblemError):  # a kernel that is known from a table, is not installed here, or was not named
        return NamedProblem.parse(text)


def _trials(study: optuna.Study, info: StudyInfo) -> list[TrialRecord]:
    trials = []
    for frozen in study.get_trials(deepcopy=False):
        measurement = outcome(frozen)
        if measurement is not None:
            if any(frozen.params[name] < 0 for name in info.knobs):
                raise ValueError(f"trial {frozen.number} has a negative code")
            values = ((name, info.knobs[name][frozen.params[name]]) for name in info.knobs)
            trials.append(as_record(frozen, frozen.number, Configuration(tuple(values)), measurement))
    return trials


def _library_best(record: Mapping[str, Any] | None) -> LibraryBest | None:
    return None if record is None or "unknown" in record else LibraryBest.from_dict(record)


def _no_library_best(found: Mapping[str, Any]) -> str:
    """Why a result does not say what the library's best is; empty if it does, or no search has ended."""
    if found and "library_best" not in found:
        return "it was searched by an older tilescout, which did not time the library's candidates"
    record = found.get("library_best")
    return str(record["unknown"]) if record is not None and "unknown" in record else ""


def _race(record: Mapping[str, Any] | None) -> Race | None:
    if record is None:
        return None
    ratios = {number_of_key(number): Estimate(**ratio) for number, ratio in record["time_over_library"].items()}
    # Older studies store how many rounds there were, and not which configurations left the race early.
    ran = record.get("rounds_of", dict.fromkeys(ratios, record["rounds"]))
    return Race(
        winner=record["winner"],
        answer=record["answer"],
        ratios=ratios,
        over_default=Estimate(**record["speedup_over_default"]).inverse(),
        elsewhere=Estimate(**elsewhere).inverse() if (elsewhere := record.get("speedup_elsewhere")) else None,
        probability=record["probability_fastest"],
        rounds=record["rounds"],
        ran={number_of_key(number): rounds for number, rounds in ran.items()},
        gpu_seconds=record["gpu_seconds"],
        pairs=record.get("pairs", 1),  # older studies do not tell
    )
