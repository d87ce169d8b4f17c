"""A table of what searches have measured: a cost model can learn from it as from a campaign's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tilescout.search.measure.measurement import Measurement, Raced
from tilescout.search.measure.protocol import Objective, protocol_of
from tilescout.search.studies.records import StudyResult
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


def measured_alike(
    results: Iterable[StudyResult], template: KernelTemplate, device: str | None, objective: Objective | None
) -> list[StudyResult]:
    """The studies of a space whose times belong into one table, the oldest first.

    What was replayed is left out, as are studies of kernels whose source has changed since.

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
    """
    of_space = [result for result in results if result.info.space == template.name and result.trials]
    live = [result for result in of_space if result.info.provenance.kind == "live"]
    fresh = [result for result in live if result.info.space_hash == template.source_hash]
    found = [
        result
        for result in fresh
        if device in (None, result.info.device) and objective in (None, result.info.provenance.objective)
    ]
    if not found:
        raise StoreError(
            f"no search of {template.name} has measured what is asked for; studies of it: {len(of_space)}, with times "
            f"of a GPU: {len(live)}, of today's kernels: {len(fresh)}; search with `tilescout tune` on a GPU"
        )
    kinds = sorted({f"{result.info.device} ({result.info.provenance.objective})" for result in found})
    if len(kinds) > 1:
        raise StoreError(f"times on {' and '.join(kinds)} are not comparable: name the device and the objective")
    return sorted(found, key=lambda result: result.trials[0].started)


def table_of_studies(results: Sequence[StudyResult], template: KernelTemplate, out: Path) -> Table:
    """Write the trials of studies as a table, and read it back.

    A configuration that several studies tried on a problem has the outcome of the newest that timed it.

    Parameters
    ----------
    results
        As `measured_alike` gives them; at least one.
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
    if out.exists():
        raise StoreError(f"{out} is there already: write another file")
    rows: dict[tuple[Problem, Configuration], Measurement] = {}
    baselines: dict[Problem, Baseline] = {}
    for result in results:
        info = result.info
        baselines[info.problem] = Baseline(info.default, info.library_us, result.library_best)
        for configuration, measured in _outcomes(result):
            key = info.problem, configuration
            if measured.timing is not None or key not in rows:
                rows[key] = measured
    newest = results[-1]
    device, source = find_device(newest.info.device), newest.info.provenance
    versions = dict(source.versions)
    protocol, text = protocol_of(source.objective)
    card = TableCard(
        space=template.name,
        source_hash=template.source_hash,
        knobs={knob.name: knob.values for knob in template.knobs},
        device=device.name,
        product=device.product,
        driver=versions.pop("driver", "none"),
        protocol=versions.pop("protocol", protocol),
        versions=versions,
        protocol_text=text,
        recorded=datetime.fromtimestamp(newest.trials[-1].finished, UTC).date(),
        library=newest.info.library,
        baselines=baselines,
        selection=f"{SELECTION}: {number_of(len(results), 'study', 'studies')}",
        objective=source.objective,
    )
    of_problem = {problem: number for number, problem in enumerate(baselines)}
    ordered = sorted(rows.items(), key=lambda row: of_problem[row[0][0]])  # stable: trials stay in their order
    return write_table(out, card, ((configuration, problem, found) for (problem, configuration), found in ordered))


def _outcomes(result: StudyResult) -> Iterator[tuple[Configuration, Measurement]]:
    """The trials of a study; those that raced also with what the race told."""
    race = result.race
    for trial in result.trials:
        measured = trial.measurement
        if race is not None and trial.index in race.ratios:
            told = race.ratios[trial.index]
            measured = replace(measured, raced=Raced(told.value, told.low, told.high, race.ran[trial.index]))
        yield trial.configuration, measured
