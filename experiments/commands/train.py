"""``tilescout train``: learn cost models from recorded tables."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from tilescout.costmodel.analytic import AnalyticModel, Calibration, is_tiled
from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.estimator import CostModel, Sample
from tilescout.costmodel.evaluation import impossible_share
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.objectives import told_apart
from tilescout.costmodel.persistence import check_model_file, model_in, save_model
from tilescout.costmodel.ranking import RankingOptions
from tilescout.costmodel.uncertainty import FOLDS, Ensemble, Errors
from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.model_options import steps_option, trees_option
from tilescout.experiments.commands.options import (
    Folder,
    collected,
    examples,
    mlflow_option,
    seed_option,
    shown_at,
    space_argument,
    store_option,
)
from tilescout.experiments.commands.outputs import check_mlflow, console_beside, make_folder
from tilescout.experiments.commands.train_evaluation import CrossValidation
from tilescout.experiments.progress import progress_bar, waiting
from tilescout.search.tables.shipped import check_held, named_tables
from tilescout.search.tables.training import card_of, samples_of
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import ModelError, SpaceError
from tilescout.spaces.outputs import check_replaceable, has_keys, write_whole
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.texts import file_name, number_of

_CALIBRATION = tuple(field.name for field in fields(Calibration))
HANDFUL = 24
"""Random configurations a problem that the analytic model is calibrated with."""
_LOOKED_AT = 8
"""Problems of whose spaces random configurations are predicted."""
_FEW = 0.01
"""Share of impossible predictions above which `train` says what is missing."""
_TOO_FEW_KERNELS = (
    ": the tables hold too few kinds of kernels, and a search would begin with those; measure a random sample with "
    "`tilescout collect --sample 300` and learn from it too"
)


@dataclass(frozen=True)
class TrainRequest:
    """The parameters of the command; its help text says what each means."""

    space: str
    tables: tuple[Path, ...]
    without: tuple[str, ...]
    trees: int
    steps: int
    seed: int
    out: Path | None
    store: Path
    mlflow_uri: str | None


@click.command(
    epilog=examples(
        "tilescout train gemm_sm90",
        "tilescout train gemm_sm90 --without 512x512x512:bf16 --out models --mlflow http://localhost:5000",
    )
)
@space_argument
@click.option(
    "--table",
    "tables",
    type=TABLE,
    multiple=True,
    help="Table to learn from; repeatable. The first one's device is the model's. [default: all shipped of the space]",
)
@click.option("--without", multiple=True, metavar="PROBLEM", help="Leave this problem out; repeatable.")
@trees_option
@steps_option
@seed_option
@click.option("--out", type=Folder(), help="Folder to write to. [default: models in the store]")
@store_option
@mlflow_option
@collected(TrainRequest)
def train(asked: TrainRequest) -> None:
    """Train the learned cost model of SPACE on recorded tables, and calibrate the analytic model with a few rows.

    Writes SPACE-DEVICE.npz and analytic-DEVICE.json. `tilescout predict` and the sampler `guided` use the shipped
    models unless --model names another. MLflow's registry gets the model, with how good it is on problems left out.
    """
    check_mlflow(asked.mlflow_uri, asked.store)
    template = load_template(asked.space)
    tables = named_tables(template, asked.tables)
    left_out = [template.parse(text) for text in asked.without]
    check_held(list(map(str, left_out)), [str(problem) for table in tables for problem in table.problems])
    samples = [sample for table in tables for sample in samples_of(table, template, left_out)]
    card = card_of(tables, samples)
    device = card.device
    folder = asked.out if asked.out is not None else asked.store / "models"
    path = model_in(folder, template.name, device)
    analytic = folder / f"{file_name(f'analytic-{device}')}.json"
    make_folder(folder)
    check_model_file(path)
    check_replaceable(analytic, "a calibration", lambda file: has_keys(file, _CALIBRATION), ModelError)
    console = console_beside(None)
    started = time.perf_counter()
    options = BlendOptions(
        ForestOptions(trees=asked.trees, seed=asked.seed), RankingOptions(steps=asked.steps, seed=asked.seed)
    )
    model = BlendModel(options)
    with progress_bar() as bar:
        task = bar.add_task("cross-validate, then learn from all", total=FOLDS + 1)
        validation = CrossValidation()

        def take(ensemble: Ensemble, learned: Sequence[Sample]) -> None:
            validation.add(ensemble, learned)
            bar.advance(task)

        model.on_grown = take
        model.fit(samples)
        bar.update(task, completed=FOLDS + 1, description="learned")
    save_model(path, model, card)
    assert model.fitted is not None
    errors = model.fitted.errors
    problems = len(card.problems)
    console.say(
        f"{path}: {number_of(card.rows, 'measurement')} of {number_of(problems, 'problem')}, "
        f"{number_of(asked.trees, 'tree')}, {path.stat().st_size / 1e6:.1f} MB, "
        f"{time.perf_counter() - started:.0f} s; {_told(errors, problems)}"
    )
    some = [template.parse(text) for text in card.problems[:: -(-problems // _LOOKED_AT)]]
    told, beyond = beyond_the_tables(model, template, some, find_device(device), asked.seed)
    console.say(told)
    if is_tiled(samples[0].features.names):
        calibration = calibrate(samples, ", ".join(table.path.name for table in tables), asked.seed)
        write_whole(analytic, calibration.to_json().encode())
        console.say(f"{analytic}: calibrated with {number_of(calibration.measurements, 'measurement')}")
    from tilescout.search.tracking import default_store
    from tilescout.search.tracking.models import log_model

    with waiting("evaluate and log to MLflow"), TemporaryDirectory(prefix="tilescout-") as temporary:
        uri = asked.mlflow_uri or default_store(asked.store)[0]
        known = [template.parse(text) for text in card.problems]
        shapes = dict(zip(card.problems, shape_groups(known), strict=True))
        evaluation = validation.evaluation(model, told_apart(samples), shapes, Path(temporary))
        evaluation = replace(evaluation, metrics={**evaluation.metrics, **beyond})
        datasets = [table.dataset for table in tables]
        run, version = log_model(uri, path, card, samples[0].features, datasets, evaluation)
    console.say(f"registered as {version}; {shown_at(run.page, asked.mlflow_uri, asked.store)}")


def beyond_the_tables(
    model: CostModel, template: KernelTemplate, problems: Sequence[Problem], device: Device, seed: int
) -> tuple[str, dict[str, float]]:
    """A sentence of how sound a model is of configurations that no table holds, and its figure for MLflow, by name."""
    try:
        impossible = impossible_share(model, template, problems, device, seed)
    except SpaceError as error:  # the algorithms of a library, which only tables hold where there is no GPU
        return f"configurations beyond the tables were not looked at: {error}", {}
    told = (
        f"of random configurations of {number_of(len(problems), 'problem')} it predicts {impossible:.1%} to be faster "
        f"than a kernel can be{_TOO_FEW_KERNELS if impossible > _FEW else ''}"
    )
    return told, {"impossible": impossible}


def _told(errors: Errors, problems: int) -> str:
    """How wrong a model is, as far as its cross-validation tells."""
    single = f"{np.expm1(np.sqrt(errors.floor)):.1%} and more"  # errors are of logarithms
    if problems > 1:
        return (
            f"on a problem left out of the training, all times are off by {np.expm1(errors.shift):.1%}, single ones by "
            f"{single}"
        )
    return (
        f"on rows left out of the training, times are off by {single}; one problem does not tell how far all times of "
        "another are off, and intervals leave that out"
    )


def calibrate(samples: list[Sample], table: str, seed: int) -> Calibration:
    """The analytic model's constants from `HANDFUL` random configurations of each problem."""
    generator = np.random.default_rng(seed)
    few = [s.take(generator.choice(len(s), min(HANDFUL, len(s)), replace=False)) for s in samples]
    calibration = AnalyticModel().fit(few).fitted
    assert calibration is not None
    return replace(calibration, source=f"{HANDFUL} random rows a problem of {table}, seed {seed}")
