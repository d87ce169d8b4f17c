"""A table of what searches have measured: a cost model can learn from it as from a campaign's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tilescout.search.measure.measurement import Measurement, Raced, Status
from tilescout.search.measure.protocol import Objective, protocol_of
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import check_knobs
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.texts import number_of

SELECTION = "what searches tried"


def comparable(
    results: Iterable[StudyResult], template: KernelTemplate, device: str | None, objective: Objective | None
) -> list[StudyResult]:
    """The studies of a space whose times belong into one table.

    What was replayed is left out, as are studies of kernels whose source has changed since, and by an older protocol.

    Parameters
    ----------
    results
        Studies of any space.
    template
        Of the space.
    device, objective
        Of the times; None where all studies are of one.

    Raises
    ------
    StoreError
        If there is none, or they are of several devices or objectives.
    DeviceError
        If there is no such device.
    """
    asked = find_device(device).name if device is not None else None
    of_space = [result for result in results if result.info.space == template.name and result.trials]
    live = [result for result in of_space if not result.info.provenance.replayed]
    fresh = [result for result in live if result.info.space_hash == template.source_hash and _is_of_today(result)]
    found = [
        result
        for result in fresh
        if asked in (None, result.info.device) and objective in (None, result.info.provenance.objective)
    ]
    if not found:
        raise StoreError(
            f"no search of {template.name} has measured what is asked for; studies of it: {len(of_space)}, with times "
            f"of a GPU: {len(live)}, of today's kernels: {len(fresh)}; search with `tilescout tune` on a GPU"
        )
    kinds = sorted({f"{result.info.device} ({result.info.provenance.objective})" for result in found})
    if len(kinds) > 1:
        raise StoreError(f"times on {' and '.join(kinds)} are not comparable: name the device and the objective")
    return found


def _is_of_today(result: StudyResult) -> bool:
    source = result.info.provenance
    return source.versions.get("protocol") == protocol_of(source.objective)[0]


def _ended(result: StudyResult) -> float:
    return max(trial.finished for trial in result.trials)


def check_new(out: Path) -> None:
    """Refuse a table that is there already: to be asked before what it shall hold is read or measured.

    Raises
    ------
    StoreError
        If there is one.
    """
    if out.exists():
        raise StoreError(f"{out} is there already: write another file")


def table_of_studies(results: Sequence[StudyResult], template: KernelTemplate, out: Path) -> Table:
    """Write the trials of studies as a table, and read it back.

    Of a configuration that several studies tried on a problem the last time counts, or without one the last outcome. A
    result that was found to be wrong since it was timed counts, too. Ratios are what was measured. A problem's times
    are these times the steady time that its last study took of the library.

    Parameters
    ----------
    results
        As `comparable` gives them; at least one.
    template
        Of their space.
    out
        The table's Parquet file.

    Raises
    ------
    StoreError
        If the file is there already.
    TableError
        If it can't be written, or can't hold knobs of these names.
    """
    check_knobs(knob.name for knob in template.knobs)
    check_new(out)
    in_time = sorted(results, key=_ended)
    baselines: dict[Problem, Baseline] = {}
    for result in in_time:
        info, before = result.info, baselines.get(result.info.problem)
        best = result.library_best or (before.library_best if before is not None else None)
        baselines[info.problem] = Baseline(info.default, info.library_us, best)
    rows: dict[tuple[Problem, Configuration], Measurement] = {}
    for result, trial in sorted(_trials(in_time), key=lambda each: each[1].finished):
        key = result.info.problem, trial.configuration
        if key not in rows or _weight(trial.measurement) >= _weight(rows[key]):
            rows[key] = _told(result, trial, baselines[result.info.problem].library_us)
    newest, versions = in_time[-1], _versions(in_time)
    versions.pop("protocol", None)  # the card names it
    card = TableCard.of_today(
        template,
        find_device(newest.info.device),
        newest.info.provenance.objective,
        driver=versions.pop("driver", "none"),
        versions=versions,
        recorded=datetime.fromtimestamp(_ended(newest), UTC).date(),
        libraries=(result.info.library for result in in_time),
        baselines=baselines,
        selection=f"{SELECTION}: {number_of(len(results), 'study', 'studies')}",
    )
    of_problem = {problem: number for number, problem in enumerate(baselines)}
    ordered = sorted(rows.items(), key=lambda row: of_problem[row[0][0]])  # stable: trials stay in their order
    return write_table(out, card, ((configuration, problem, found) for (problem, configuration), found in ordered))


def _trials(results: Iterable[StudyResult]) -> Iterator[tuple[StudyResult, TrialRecord]]:
    """The trials that ended, of studies."""
    for result in results:
        for trial in result.trials:
            if trial.measurement.status is not Status.INTERRUPTED:
                yield result, trial


def _weight(found: Measurement) -> int:
    """How much an outcome tells: one that weighs less does not replace an older one."""
    if found.timing is not None or found.status is Status.WRONG:
        return 2
    return 1 if found.pilot_us is not None else 0


def _told(result: StudyResult, trial: TrialRecord, library_us: float) -> Measurement:
    """The outcome of a trial, with times by a steady time of the library, and with what a race told."""
    measured, race = trial.measurement, result.race
    by = library_us / result.info.library_us
    timing = replace(measured.timing, library_us=library_us) if measured.timing is not None else None
    pilot_us = measured.pilot_us * by if measured.pilot_us is not None else None
    raced = None
    if race is not None and trial.index in race.ratios:
        told = race.ratios[trial.index]
        raced = Raced(told.value, told.low, told.high, race.pairs_of(trial.index))
    return replace(measured, timing=timing, pilot_us=pilot_us, raced=raced)


def _versions(results: Iterable[StudyResult]) -> dict[str, str]:
    """The versions of all studies: where they differ, one behind the other, the oldest first."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        for name, text in result.info.provenance.versions.items():
            found.setdefault(name, {})[text] = None
    return {name: ", ".join(texts) for name, texts in found.items()}
