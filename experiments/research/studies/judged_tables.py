"""Make tables that a cost model can learn from of what tunings that were judged live had measured.

    python -m tilescout.experiments.research judged-tables judged-811.json.gz judged-812.json.gz --write tables

The records are of `tunings-judged`. A judged search goes on for long, corrects its model by what it measures, and so
holds many kernels that are nearly the fastest, and those that the model was wrong about. The problems were drawn to
judge by, and are retired with this: what learns of them is judged by other products (n, k). Those of the suite
`out-of-sample` and of the newest list of `draw-problems` are left out: they stay unseen.

A record keeps the ratios of the kernels' times to the library's. Newer ones keep the library's own time, too. Older
ones do not: there it is chosen such that the median of a problem's times is what a cost model expects. `--models` names
the folder of the models that are asked for it.

A record does not say which source its kernels had. Whoever names records of before a change of the kernels makes a
table that is partly of those.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import click
import numpy as np

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import SavedModel, load_model, model_file, shipped_model
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.draw_problems import kept_unseen
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.protocol import Objective
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, StoreError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.launched import codes_known
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

SPACES = ("gemm_sm90", "gemm_streamk_sm90")
DEVICE = "h200"
"""Few tunings were judged on another."""

GPU_SECONDS = 0.02
"""Charged for a row, since records do not say: rows of `live-131` took 0.018 and 0.021 s on average in the spaces."""

SELECTION = (
    "what judged tunings had measured, and the trials more that they were judged by; each ratio is a record's, "
    f"whose interval and pairs it does not have; the GPU seconds are {GPU_SECONDS} a row; records of before a change "
    "of the kernels are of those before"
)


@dataclass(frozen=True)
class Judged:
    """The measurements of a problem's tunings in a space.

    Attributes
    ----------
    problem
        The problem.
    ratios
        The time over the library's of each configuration, by its codes; the first where it was measured several times.
    library_us
        The library's time, in µs; None where the record lacks it.
    """

    problem: GemmProblem
    ratios: Mapping[tuple[int, ...], float]
    library_us: float | None


def found_in(record: Record, template: KernelTemplate) -> Iterator[Judged]:
    """The problems of a record in a space, but those of products that stay unseen.

    Raises
    ------
    StoreError
        If it is of another device.
    KeyError, TypeError, ValueError, AttributeError
        If it is not a record of judged tunings.
    """
    if find_device(DEVICE).product not in str(record.about["machine"]):
        raise StoreError(f"measured on {record.about['machine']}, not on an {DEVICE}")
    unseen = kept_unseen()
    for name, found in record.result["problems"].items():
        problem = GemmProblem.parse(name)
        if (problem.n, problem.k) in unseen:
            continue
        ratios: dict[tuple[int, ...], float] = {}
        library_us = None
        for part in (*found["all"], *(part for its in found.get("beside", {}).values() for part in its["tuned"])):
            if part["space"] != template.name:
                continue
            library_us = library_us or part.get("library_us")
            for given, ratio in part["measured"]:
                for codes in codes_known(template.knobs, [Configuration.of(given)]).tolist():
                    ratios.setdefault(tuple(codes), ratio)
        if ratios:
            yield Judged(problem, ratios, library_us)


def rows_of(judged: Judged, template: KernelTemplate, model: SavedModel) -> list[Row]:
    """The rows of a problem in a table, of what is still legal, the fastest first.

    Parameters
    ----------
    judged
        What was measured.
    template
        Of the space.
    model
        The cost model that tells the library's time where the record does not.
    """
    codes = np.array(list(judged.ratios))
    space = template.space_of(codes, judged.problem, find_device(DEVICE))
    if space is None:
        return []
    at = space.find(codes)
    ratios = np.array(list(judged.ratios.values()))
    library_us = judged.library_us
    if library_us is None:
        expected = model.predict(space_features(space, template)).mean
        library_us = float(np.exp(np.median(expected[at[at >= 0]] - np.log(ratios[at >= 0]))))
    order = [row for row in np.argsort(ratios, kind="stable").tolist() if at[row] >= 0]
    return [(space[int(at[row])], judged.problem, _measured(float(ratios[row]), library_us)) for row in order]


def _measured(ratio: float, library_us: float) -> Measurement:
    timing = Timing(ratio, ratio, ratio, ratio, ratio, library_us, pairs=1)
    return Measurement(Status.OK, timing=timing, gpu_seconds=GPU_SECONDS)


def table_of(records: Sequence[Record], template: KernelTemplate, model: SavedModel, out: Path) -> Table:
    """Write the table of a space, and read it back; a problem of several records is that of the first.

    Raises
    ------
    StoreError
        If a record is of another device, or none says by which versions it was measured.
    TableError
        If it can't be written.
    """
    last = next((record.about for record in reversed(records) if "versions" in record.about), None)
    if last is None:
        raise StoreError("none of the records says by which versions it was measured: add a newer one")
    rows: dict[str, list[Row]] = {}
    for record in records:
        for judged in found_in(record, template):
            if str(judged.problem) not in rows and (found := rows_of(judged, template, model)):
                rows[str(judged.problem)] = found
    device = find_device(DEVICE)
    baselines = {}
    for name, found in rows.items():
        problem, timing = template.parse(name), found[0][2].timing
        assert timing is not None
        baselines[problem] = Baseline(template.default_in(template.space(problem, device)), timing.library_us)
    card = TableCard.of_today(
        template,
        device,
        Objective.SANDWICH,
        driver=f"CUDA {last['machine']['cuda_driver']}",
        versions={"torch": last["versions"]["torch"]},
        recorded=max(date.fromisoformat(record.about["date"][:10]) for record in records),
        libraries=map(load_workload(template.workload).library, baselines),
        baselines=baselines,
        selection=SELECTION,
    )
    return write_table(out, card, [row for found in rows.values() for row in found])


def tell(table: Table) -> dict[str, int]:
    """Print how large a table is, and return it for the record of a study."""
    click.echo(f"{table.path.name}: {table.extent}")
    return {"rows": len(table), "problems": len(table.problems)}


@study("records of judged tunings")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the cost models that tell missing times. [default: the shipped ones]",
)
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), required=True, help="The folder of tables.")
def main(run: Run, paths: tuple[Path, ...], models: Path | None, write: Path) -> None:
    """Write tables of what judged tunings had measured, one of each space."""
    told = {}
    records = [Record.read(path) for path in paths]
    for name in SPACES:
        template = find_template(name)
        file = shipped_model(name, DEVICE) if models is None else model_file(models, name, DEVICE)
        assert file is not None
        try:
            table = table_of(records, template, load_model(file)[0], write / f"{name}-{DEVICE}-judged.parquet")
        except MALFORMED as error:
            raise StoreError(f"a file is not of tunings-judged: {one_line(error)}") from error
        told[table.path.name] = tell(table)
    run.keep(told)
