"""``tilescout dispatcher``: of recorded times and by a model, and the bundle that is made of it."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.search.dispatch.invented_gpu import MOST, InventedGpu
from tilescout.experiments.commands import dispatcher as command
from tilescout.experiments.commands.dispatcher import dispatcher, models_of, place_in, print_dispatcher
from tilescout.experiments.commands.export import export
from tilescout.search.dispatch.building import DispatchOptions, measure_dispatcher
from tilescout.search.dispatch.dispatcher import Dispatcher, read_dispatcher
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.dispatch.recorded import read_sweep
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.export.bundle import read_bundle
from tilescout.search.export.decisions import Choice
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, ExportError, ModelError, ProblemError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.terminal import Console

PRODUCT = ("gemm_sm90", "--product", "6144x4096:bf16", "--most-rows", MOST)
EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
SIZES = (1, 16, 17, 40, 64, 65, 128, 129, 200, 256, 400, 600, 900, 1300, 1700, MOST)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    gpu = InventedGpu(6144, 4096, 24, noise=0.0, seed=3)
    return Sweep(gpu, gpu.kernels)


@pytest.fixture(scope="module")
def recorded(sweep: Sweep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the study ``dispatch-sweep`` writes it."""
    points = [sweep.at(m, range(len(sweep.kernels))).to_dict() for m in SIZES]
    kernels = [dict(each) for each in sweep.kernels.configurations]
    product = {"problem": "1x6144x4096:bf16", "kernels": kernels, "points": points}
    path = tmp_path_factory.mktemp("sweep") / "sweep.json.gz"
    record = {"about": {}, "result": {"device": "NVIDIA H200", "products": {"6144x4096": product}}}
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, copy_store: Callable[[Path], str]) -> Path:
    folder = tmp_path_factory.mktemp("dispatchers")
    copy_store(folder)
    return folder


def _run(store: Path, *arguments: object) -> str:
    words = [*map(str, PRODUCT), *map(str, arguments), "--store", str(store)]
    done = CliRunner().invoke(dispatcher, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def _words(said: str) -> str:
    return " ".join(said.split())


@pytest.mark.slow
def test_recorded_times_give_ranges_a_plot_and_a_python_file(recorded: Path, store: Path, tmp_path: Path) -> None:
    out, plot, python = tmp_path / "d.json", tmp_path / "d.png", tmp_path / "d.py"

    said = _run(
        store, "--sweep", recorded, "--kernels", 4, "--json", tmp_path / "r.json", "--out", out, "--plot", plot,
        "--python", python,
    )  # fmt: skip

    made = read_dispatcher(out)
    assert json.loads((tmp_path / "r.json").read_text()) == made.to_dict()
    assert len(made.kernels) <= 4
    assert {point.m for point in made.points} <= set(SIZES)
    assert "replayed from sweep.json.gz" in " ".join(said.split())
    assert f"{made.stretches[0].low:,} to {made.stretches[0].high:,}" in said
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert f"DEVICE = {made.device!r}" in python.read_text()


@pytest.mark.slow
def test_it_is_logged_to_mlflow_with_its_figures_and_files(recorded: Path, store: Path) -> None:
    import mlflow

    _run(store, "--sweep", recorded, "--kernels", 2)
    mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
    [run] = mlflow.search_runs(
        experiment_names=["tilescout/dispatchers"], filter_string="params.most_kernels = '2'", output_format="list"
    )
    made = read_dispatcher(store / "dispatchers" / "gemm_sm90-h200-6144x4096-bf16.json")
    assert made.regret is not None
    assert run.data.metrics["regret_worst"] == pytest.approx(made.regret.worst)
    assert run.data.metrics["ranges"] == len(made.stretches)
    files = {each.path for each in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert files == {"gemm_sm90-h200-6144x4096-bf16.json", "dispatcher.py", "regret.png"}


@pytest.mark.slow
def test_speeds_over_the_librarys_best_are_said_logged_and_drawn(
    recorded: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    told, replayed = {1: 0.8, MOST: 1.25}, command._replayed
    said = _run(store, "--sweep", recorded, "--kernels", 1, "--out", tmp_path / "d.json")
    assert "the library's best is not known: the times that are replayed were recorded without it" in _words(said)

    def measured(*about: Any) -> Dispatcher:
        return replace(replayed(*about), over_library_best=told, no_library_best="")

    monkeypatch.setattr(command, "_replayed", measured)
    said = _run(store, "--sweep", recorded, "--kernels", 3, "--out", tmp_path / "e.json", "--plot", tmp_path / "e.png")

    made = read_dispatcher(tmp_path / "e.json")
    assert made.over_library_best == told
    many = f"at 2 of {len(made.points)} measured m"
    assert f"over the library's best candidate, {many}: 1.000 of its speed on average, 0.800 at least" in _words(said)
    mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
    [run] = mlflow.search_runs(
        experiment_names=["tilescout/dispatchers"], filter_string="params.most_kernels = '3'", output_format="list"
    )
    assert run.data.metrics["mean_speedup_over_library_best"] == pytest.approx(1.0)
    assert run.data.metrics["least_speedup_over_library_best"] == pytest.approx(0.8)
    assert run.data.metrics["known_library_best"] == 2


@pytest.mark.parametrize(
    ("fast", "library"),
    [(False, "torch._scaled_mm(use_fast_accum=False)"), (True, "torch._scaled_mm(use_fast_accum=True)")],
)
def test_the_function_that_times_are_over_is_named(
    fast: bool, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, template = GemmProblem(1, 1280, 1280, dtype="e4m3", fast=fast), find_template("gemm_sm90")
    kernel = template.default(problem, find_device("h200"))
    made = Dispatcher(
        *(problem, 64, template.name, {template.name: template.source_hash}, "h200", (kernel,), (template.name,)),
        *((Stretch(1, 64, 0),), "a test"),
    )
    print_dispatcher(made, Console(width=200))
    assert f"of the time of {library}" in capsys.readouterr().out


def test_in_a_store_what_a_gpu_measured_is_replaced_by_nothing_else(
    sweep: Sweep, recorded: Path, tmp_path: Path
) -> None:
    source, _ = read_sweep(recorded, sweep.kernels.problem, sweep.kernels.templates[0])
    replayed = measure_dispatcher(source, DispatchOptions(1, MOST), "a replay", {})
    measured = replace(replayed, versions={"torch": "2.13"})
    place = tmp_path / f"{replayed.name.replace('/', '-')}.json"
    assert place_in(tmp_path, replayed) == place_in(tmp_path, measured) == place
    replayed.write(place)
    assert place_in(tmp_path, replayed) == place_in(tmp_path, measured) == place
    measured.write(place)
    assert place_in(tmp_path, measured) == place
    assert place_in(tmp_path, replayed) == tmp_path / f"{place.stem}-unmeasured.json"
    place.write_text("{")
    assert place_in(tmp_path, replayed) == place


@pytest.mark.slow
def test_a_model_chooses_where_nothing_is_measured(store: Path, tmp_path: Path) -> None:
    said = _run(store, "--device", "h200", "--candidates", 12, "--others", 0, "--out", tmp_path / "d.json")
    assert "nothing was measured" in " ".join(said.split())
    assert not read_dispatcher(tmp_path / "d.json").points
    refused = ["--dispatcher", str(tmp_path / "d.json"), "--out", str(tmp_path / "bundle"), "--store", str(store)]
    with pytest.raises(ExportError, match="a bundle holds only what was"):
        CliRunner().invoke(export, refused, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_that_kernels_are_being_chosen_is_shown_on_a_terminal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    few = ("--candidates", 2, "--others", 0, "--kernels", 1, "--most-rows", 2048)  # the last one counts
    said = _run(store, "--device", "h200", *few, "--out", tmp_path / "d.json")

    assert ("choose kernels for 1 to 2,048 rows" in said) is terminal


def test_a_file_speaks_for_the_first_space_and_a_folder_for_all(tmp_path: Path) -> None:
    device, templates = find_device("h200"), [find_template(name) for name in ("gemm_sm90", "gemm_streamk_sm90")]
    problem = GemmProblem.parse("512x512x4096:bf16")
    kernels = Kernels(device, problem, [each.space(problem, device)[0] for each in templates], templates)
    file = shutil.copyfile(EXAMPLES / "gemm_sm90-h200.npz", tmp_path / "gemm_sm90-h200.npz")
    shipped, of_both = models_of(None, kernels)
    named, of_one = models_of(file, kernels)

    assert list(shipped) == list(named) == [each.name for each in templates]
    assert of_both.partition(" and ")[0] != of_one.partition(" and ")[0]
    assert of_both.partition(" and ")[2] == of_one.partition(" and ")[2]
    with pytest.raises(ModelError, match=r"has no gemm_streamk_sm90-h200\.npz.*, only gemm_sm90-h200\.npz"):
        models_of(tmp_path, kernels)


def spoil(recorded: Path, into: Path, change: Callable[[list[dict[str, object]]], object]) -> Path:
    """The recorded sweep with other kernels."""
    record = json.loads(gzip.decompress(recorded.read_bytes()))
    for product in record["result"]["products"].values():
        change(product["kernels"])
    into.write_bytes(gzip.compress(json.dumps(record).encode()))
    return into


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda kernels: kernels[0].update(tile_k=63), "knob tile_k can't be 63"),
        (lambda kernels: kernels[0].update(bogus=1), "unknown key 'bogus'"),
        (lambda kernels: kernels[0].update(raster="n" * 5_000_000), "knob raster can't be nnn"),
        (lambda kernels: kernels.clear(), "no kernels"),
    ],
    ids=["a value", "a knob", "a long text", "nothing"],
)
def test_a_sweep_of_what_the_template_does_not_have_is_refused(
    recorded: Path, store: Path, tmp_path: Path, change: Callable[[list[dict[str, object]]], object], reason: str
) -> None:
    sweep = spoil(recorded, tmp_path / "other.json.gz", change)
    with pytest.raises(StoreError, match=reason):
        _run(store, "--sweep", sweep, "--out", tmp_path / "d.json")


@pytest.mark.slow
def test_a_module_that_imports_the_generated_one_is_not_replaced(recorded: Path, store: Path, tmp_path: Path) -> None:
    mine, written = tmp_path / "mine.py", tmp_path / "kernels.py"
    mine.write_text('"""My serving code."""\nfrom kernels import kernel_of\n')
    for _ in range(2):  # its own is
        _run(store, "--sweep", recorded, "--kernels", 2, "--out", tmp_path / "d.json", "--python", written)
    with pytest.raises(StoreError, match="is there already and is not a dispatcher in Python"):
        _run(store, "--sweep", recorded, "--kernels", 2, "--out", tmp_path / "d.json", "--python", mine)
    assert "My serving code" in mine.read_text()


def test_no_plot_is_drawn_of_what_a_model_chooses_and_that_is_said_at_once(store: Path, tmp_path: Path) -> None:
    out, plot = tmp_path / "d.json", tmp_path / "d.png"
    words = [*PRODUCT, "--device", "h200", "--out", out, "--plot", plot, "--store", store]
    done = CliRunner().invoke(dispatcher, list(map(str, words)))
    assert done.exit_code == 2
    assert "--plot draws what was measured" in done.output
    assert not out.exists()
    assert not plot.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--sweep", "RECORDED", "--model", "models"), "--model changes nothing where --sweep replays recorded times"),
        (("--sweep", "RECORDED", "--device", "h100"), "--device changes nothing where --sweep replays recorded times"),
        (("--sweep", "RECORDED", "--seconds", "9"), "--seconds changes nothing where --sweep replays recorded times"),
        (("--device", "h200", "--seconds", "9"), "--seconds limits measuring, and with the name of a device a model"),
        (("--device", "h200", "--out", "kernels", "--python", "./kernels"), "name a file twice"),
    ],
)
def test_options_that_do_not_go_together_are_refused_at_once(
    recorded: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(recorded) if each == "RECORDED" else each for each in arguments]
    done = CliRunner().invoke(dispatcher, [*map(str, PRODUCT), *given, "--store", str(store)])
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_bundle_holds_the_ranges_and_their_kernels(store: Path, tmp_path: Path, recorded: Path) -> None:
    _run(store, "--sweep", recorded, "--kernels", 1, "--out", tmp_path / "d.json")
    record = json.loads((tmp_path / "d.json").read_text())
    record["format"] = 1  # without a checksum
    [record["space_hash"]] = record.pop("hashes").values()
    record["versions"] = {"nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")}  # as of what a GPU measured
    (tmp_path / "d.json").write_text(json.dumps(record))
    words = ["--dispatcher", str(tmp_path / "d.json"), "--out", str(tmp_path / "bundle"), "--store", str(store)]

    done = CliRunner().invoke(export, words, catch_exceptions=False)

    assert done.exit_code == 0, done.output
    made, bundle = read_dispatcher(tmp_path / "d.json"), read_bundle(tmp_path / "bundle")
    assert f"{len(made.stretches)} ranges of m" in " ".join(done.output.split())
    assert len(bundle.kernels) == len(made.kernels) == 1
    for m in (*SIZES, 3, 1000, MOST + 1):
        choice = bundle.choice(GemmProblem(m, 6144, 4096))
        if m > MOST:
            assert choice is None
        else:
            assert choice is (Choice.LIBRARY if made.find(m) is None else Choice.OURS)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        (("--device", "cuda"), DeviceError, "no GPU here"),
        (("--device", "h999"), DeviceError, "unknown device 'h999'"),
        (("--device", "h200", "--product", "6144x4095:bf16"), ProblemError, "is not a multiple"),
        (("--device", "h200", "--product", "6144x4096:bf16:mk"), ProblemError, "its layout has A along m"),
        (("--device", "h200", "--product", "6144x4095:bf16:mk"), ProblemError, "k = 4095 is not a multiple"),
        (("--device", "h200", "--product", "6144"), ProblemError, "malformed product '6144': expected NxK"),
        (("--device", "h200", "--product", "64x64:bf16:kx"), ProblemError, "product '64x64:bf16:kx': unknown 'kx'"),
        (("--device", "h200", "--product", "0x64:bf16"), ProblemError, "product 0x64:bf16: n is 0"),
        (
            ("--sweep", "RECORDED", "--product", "64x64:bf16"),
            StoreError,
            "has no times of 64x64:bf16: it has 6144x4096",
        ),
        (("--sweep", "pyproject.toml"), StoreError, "is no record of a sweep"),
        (("--sweep", "RECORDED", "--plot", "regret.pdf"), StoreError, "plots are PNG files"),
        (("--sweep", "nowhere.json"), StoreError, "can't read nowhere.json"),
    ],
)
def test_what_can_not_be_built_is_refused(
    recorded: Path,
    store: Path,
    arguments: tuple[str, ...],
    error: type[Exception],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tilescout.experiments.commands.dispatcher.usable_gpus", lambda template: [])
    monkeypatch.chdir(Path(__file__).parents[3])
    with pytest.raises(error, match=why):
        _run(store, *(str(recorded) if each == "RECORDED" else each for each in arguments))


@pytest.mark.parametrize(("arguments", "stands_by"), [((), True), (("--no-standby",), False)])
def test_processes_stand_by_for_the_next_command_unless_they_may_not(
    store: Path, arguments: tuple[str, ...], stands_by: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LiveOptions] = []

    def open_engine(*_: object, options: LiveOptions) -> None:
        opened.append(options)
        raise DeviceError("enough was seen")

    monkeypatch.setattr("tilescout.experiments.commands.dispatcher.usable_gpus", lambda template: ["cuda:0"])
    monkeypatch.setattr("tilescout.experiments.commands.dispatcher.LocalEngine", open_engine)
    with pytest.raises(DeviceError, match="enough was seen"):
        _run(store, *arguments)
    assert [options.compile.standby for options in opened] == [stands_by]


@pytest.mark.parametrize(
    ("product", "said"),
    [
        ("64x4096x2048", "n = 64, k = 4,096, a batch of 2,048 products"),
        ("64x4096", "n = 64, k = 4,096"),
    ],
)
def test_the_sizes_of_a_product_are_said_first(store: Path, product: str, said: str) -> None:
    arguments = ["gemm_sm90", "--product", f"{product}:bf16:mk", "--device", "h200", "--store", str(store)]
    done = CliRunner().invoke(dispatcher, arguments)
    assert isinstance(done.exception, ProblemError)  # for its layout: nothing is chosen here
    assert done.stderr.splitlines() == [said]


def test_a_batch_is_named_in_the_help_and_where_a_product_is_malformed(store: Path) -> None:
    assert "NxK[xBATCH]" in CliRunner().invoke(dispatcher, ["--help"]).output
    with pytest.raises(ProblemError, match=r"expected NxK\[xBATCH\]\[:DTYPE"):
        _run(store, "--device", "h200", "--product", "6144")


@pytest.mark.parametrize(("space", "ranges"), [("softmax_sm90", False), ("grouped_gemm_sm90", True)])
def test_a_space_of_other_problems_is_refused(store: Path, space: str, ranges: bool) -> None:
    arguments = [space, "--product", "64x64", "--device", "h200", "--store", str(store)]
    said = str(CliRunner().invoke(dispatcher, arguments).exception)
    assert f"{space} computes no matrix products" in said
    assert ("`tilescout export --table` it" in said) is ranges
