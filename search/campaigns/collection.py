"""A campaign from its plan to its table."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tilescout.search.campaigns.campaign import Campaign, CampaignOptions, Progress
from tilescout.search.campaigns.plan import Plan
from tilescout.search.engines.engine import Engine
from tilescout.search.measure.measurement import Raced
from tilescout.search.studies.journal import Journal, JournalForm, every
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import Row, check_knobs
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import StoreError
from tilescout.spaces.texts import number_of

FORM = JournalForm("the journal", "format", sums=True)
"""The journal of a campaign: the first record is its header."""

_SYNC_SECONDS = 0.2  # between two waits for the disk, 5 ms each: what a power failure may take


def journal_path(out: Path) -> Path:
    """The journal of the campaign that writes the table `out`, until it is finished."""
    return out.with_suffix(".journal")


def check_unfinished(out: Path) -> None:
    """Refuse a table that is there already, unless a campaign is to go on with it: to be asked before all else.

    Raises
    ------
    StoreError
        If there is one.
    """
    if out.exists() and not journal_path(out).exists():
        raise StoreError(
            f"{out} is there already and complete, no campaign is left to go on with: write another file, or delete it"
        )


def collect(
    engine: Engine,
    plan: Plan,
    out: Path,
    options: CampaignOptions,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Table:
    """Measure a plan and write the table, or resume an interrupted campaign.

    The journal beside the table holds every outcome as soon as it is known, and is removed when the table is complete.
    The rows are in the order of the plan, whatever the order in which they were measured.

    Parameters
    ----------
    engine, plan, options
        See `Campaign`.
    out
        The table's Parquet file.
    on_progress
        Called after every few outcomes.

    Raises
    ------
    StoreError
        If the campaign is finished already, is of another plan, or the journal can't be written.
    DeviceError
        If no GPU is left.
    TableError
        If the table can't be written, or can't hold knobs of these names; the latter before anything is measured.
    """
    check_knobs(knob.name for knob in engine.template.knobs)
    path = journal_path(out)
    check_unfinished(out)
    with Journal(path, FORM, every(_SYNC_SECONDS)) as journal:
        campaign = Campaign(engine, plan, journal, options, on_progress)
        campaign.run()
        table = write_table(out, make_card(campaign), rows(campaign))
        journal.remove()
    return table


def rows(campaign: Campaign) -> Iterator[Row]:
    """The rows of a finished campaign, in the order of its plan; those that raced also with what the race told."""
    plan = campaign.plan
    for (problem, configuration), measured in sorted(campaign.rows.items()):
        final = campaign.finals.get(problem)
        if final is not None and configuration in final.ratios:
            measured = replace(measured, raced=Raced(*final.ratios[configuration]))
        yield plan.configurations[configuration], plan.problems[problem], measured


def make_card(campaign: Campaign) -> TableCard:
    """The card of a finished campaign."""
    engine, plan = campaign.engine, campaign.plan
    template, versions = engine.template, dict(engine.versions)
    return TableCard(
        space=template.name,
        source_hash=engine.source_hash,
        knobs={knob.name: knob.values for knob in template.knobs},
        device=engine.device.name,
        product=engine.product,
        driver=versions.pop("driver", "none"),
        versions=versions,
        protocol=engine.protocol,
        protocol_text=engine.protocol_text,
        recorded=engine.recorded,
        library=", ".join(dict.fromkeys(map(engine.library, plan.problems))),
        baselines={
            problem: Baseline(engine.default(problem), campaign.library_us[number], campaign.library_best(number))
            for number, problem in enumerate(plan.problems)
        },
        selection=_selection(campaign),
        objective=engine.objective,
    )


def _selection(campaign: Campaign) -> str:
    prune = campaign.options.prune
    stopped = (
        "every right one timed in full"
        if prune is None
        else f"a right one whose pilot was more than {prune:g} times slower than the best known of its problem stopped "
        "there: its status is pruned, its time censored"
    )
    if not campaign.engine.measures_anew:
        stopped = "each as it was recorded"
    raced = sum(bool(final.ratios) for final in campaign.finals.values())
    races = (
        f"On {raced} of {number_of(len(campaign.plan.problems), 'problem')} the fastest rows and the default were "
        "measured anew in interleaved rounds until the fastest was one of them; that stands in columns of its own "
        "(raced_*)."
        if raced
        else f"No row was measured anew: {campaign.engine.provenance.description}."
    )
    return f"{campaign.plan.how}; {stopped}. {races}"
