"""Bad input: one clear line on standard error, exit code 2, nothing half-done."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.experiments.commands.cli import as_options, main
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import card_path

Refusal = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Run the command line on bad input and return the line it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tilescout", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert ended.value.code == 2
        assert printed.out == ""
        lines = printed.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("tilescout: ")
        return lines[0]

    return run


TUNE = ("tune", "gemm_sm90", "--device", "replay")
PROBLEM = ("--problem", "4096x4096x4096:bf16")


@pytest.mark.parametrize(
    "problem", ["", "4096", "4096x4096", "4096x4096xk", "-1x8x8", "8x8x8:bf16:", "8 8 8", "8x8x" + "9" * 5000]
)
def test_a_malformed_problem_is_told_the_form(refusal: Refusal, problem: str) -> None:
    assert "expected MxNxK" in refusal(*TUNE, "--problem", problem)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ((*TUNE, *PROBLEM, "--signature", "e4m3"), "--signature is for a suite: write types"),
        ((*TUNE, *PROBLEM, "--skip-unrecorded"), "--skip-unrecorded is for a suite"),
        (
            ("tune", "gemm_sm90", "--device", "cuda", "--suite", "squares", "--skip-unrecorded"),
            "--skip-unrecorded is for a replay, and here every problem is measured",
        ),
        ((*TUNE, "--suite", "squares", "--signature", "bf16:kx"), "--signature 'bf16:kx': malformed problem"),
        ((*TUNE, "--suite", "squares", "--first", "quack"), "--first is for one problem"),
        ((*TUNE, "--suite", "squares", "--storage", "studies"), "--storage is for one problem"),
        (
            ("portfolio", "gemm_sm90", "--model", "missing.npz"),
            "--model predicts the problems of a suite: give --suite",
        ),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    refusal: Refusal, arguments: tuple[str, ...], advice: str
) -> None:
    assert advice in refusal(*arguments)


@pytest.mark.parametrize("option", ["--seconds", "--gpu-seconds"])
@pytest.mark.parametrize("number", ["nan", "inf", "-1", "0"])
def test_a_limit_is_a_positive_number(refusal: Refusal, option: str, number: str) -> None:
    assert f"Invalid value for '{option}'" in refusal(*TUNE, *PROBLEM, option, number)


@pytest.mark.parametrize("option", ["--store", "--storage", "--mlflow", "--model"])
def test_an_empty_place_is_not_the_working_directory(
    refusal: Refusal, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "empty" in refusal(*TUNE, *PROBLEM, option, "", "--sampler", "random", "--trials", "1")
    assert not list(tmp_path.glob("*.journal"))
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    "command",
    [("collect", "gemm_sm90", "--suite", "odd", "--sample", "1", "--out", "t.parquet"), ("compare",), ("ui",)],
)
def test_an_empty_address_of_mlflow_makes_no_store_in_the_working_directory(
    refusal: Refusal, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "Invalid value for '--mlflow': it is empty" in refusal(*command, "--mlflow", "")
    assert "Invalid value for '--mlflow': mlruns is no address: allowed are" in refusal(*command, "--mlflow", "mlruns")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [(*TUNE, *PROBLEM), ("studies",), ("doctor",)], ids=lambda one: one[0])
def test_a_store_that_is_a_link_in_a_circle_is_told(
    refusal: Refusal, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in refusal(*arguments, "--store", "loop")


@pytest.mark.parametrize(
    "command", [(*TUNE, *PROBLEM), ("train", "gemm_sm90", "--out", "model.npz")], ids=lambda one: one[0]
)
def test_a_seed_is_one_that_every_generator_takes(refusal: Refusal, command: tuple[str, ...]) -> None:
    assert "Invalid value for '--seed'" in refusal(*command, "--seed", str(2**32))


@pytest.mark.parametrize("command", [("tables",), ("tune", "gemm_sm90", *PROBLEM, "--table")], ids=lambda one: one[0])
def test_a_misspelt_name_of_a_shipped_table_is_told_the_shipped_ones(
    refusal: Refusal, command: tuple[str, ...]
) -> None:
    assert "is here or shipped; shipped are gemm_sm90-h200-bf16," in refusal(*command, "gemm_sm90-h200-bf61")


def test_where_no_model_can_be_kept_none_is_trained(refusal: Refusal, tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    assert "can't make the folder" in refusal("evaluate-model", "gemm_sm90", "--store", str(tmp_path))


def test_an_impossible_size_is_told_the_range(refusal: Refusal) -> None:
    assert "m is 0, allowed are 1 to" in refusal(*TUNE, "--problem", "0x8x8")


def test_an_unknown_type_is_told_the_known_ones(refusal: Refusal) -> None:
    assert "bf16, fp16" in refusal(*TUNE, "--problem", "8x8x8:fp64")


@pytest.mark.parametrize(("problem", "knob"), [("4096x4096x4095", "k = 4095"), ("4096x4097x4096", "n = 4097")])
def test_a_size_that_tma_can_not_move_is_told_why(refusal: Refusal, problem: str, knob: str) -> None:
    line = refusal(*TUNE, "--problem", problem)
    assert f"{knob} is not a multiple of 8" in line


def test_an_unknown_space_is_told_the_known_ones(refusal: Refusal) -> None:
    assert "unknown space 'gem', known are gemm_sm90" in refusal("tune", "gem", *PROBLEM)


def test_an_unknown_space_is_told_those_with_the_most_similar_names_first(refusal: Refusal) -> None:
    line = refusal("tune", "grouped_gem_sm90", *PROBLEM)
    assert "known are grouped_gemm_sm90, " in line
    assert "quack_sm120" not in line


def test_a_module_that_is_not_found_is_told_with_where_python_looked(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("/nowhere")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # what the command adds is taken back
    for line in (
        refusal("tune", "own_kernl:RmsNorm", "--problem", "64x64:bf16"),
        refusal("suites", "from-model", "own_kernl:make"),
    ):
        assert f"looked in {sys.prefix}, /nowhere, " in line
        assert f", last in the working directory {tmp_path}: mend the name, or add" in line


def test_an_unknown_sampler_is_told_the_known_ones(refusal: Refusal) -> None:
    line = refusal(*TUNE, *PROBLEM, "--sampler", "magic")
    assert "magic" in line
    assert all(name in line for name in ("exhaustive", "random", "tpe", "gp"))


def test_an_unknown_device_is_told_the_known_ones(refusal: Refusal) -> None:
    assert "auto, cuda, cuda:N and replay" in refusal("tune", "gemm_sm90", *PROBLEM, "--device", "tpu")


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("tile_q=64", "no knob 'tile_q', its knobs are schedule"),
        ("tile_m=65", "tile_m can't be 65, allowed are 64, 128, 192, 256"),
        ("tile_m", "expected KNOB=VALUE, for example schedule=pingpong"),
        ("stages=8", "shared_memory"),
    ],
)
def test_a_bad_knob_is_told_what_is_allowed(refusal: Refusal, setting: str, answer: str) -> None:
    assert answer in refusal("compile", "gemm_sm90", *PROBLEM, "--set", setting)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tune", "gemm_sm90", *PROBLEM, *PROBLEM), "--problem is given 2 times, and takes one value: a suite"),
        (("tune", "gemm_sm90", *PROBLEM, "--sampler=tpe", "--sampler=gp"), "`tilescout compare` plays several"),
        (("predict", "gemm_sm90", *PROBLEM, *PROBLEM), "--problem is given 2 times, and takes one value"),
        (("compare", "--samplers", "random", "--samplers", "tpe"), "several stand in one list, A,B"),
    ],
)
def test_a_value_that_would_be_left_out_is_refused(refusal: Refusal, arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


def test_a_knob_that_is_set_twice_is_refused(refusal: Refusal) -> None:
    settings = "--set", "tile_m=64", "--set", "tile_m=128"
    assert "tile_m is set twice" in refusal("compile", "gemm_sm90", *PROBLEM, *settings)


@pytest.mark.skipif(bool(visible_gpus()), reason="there is a GPU here")
@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("tune --device cuda", "replay a table with --device replay"),
        ("measure", "--device replay` does not"),
    ],
)
def test_a_missing_gpu_is_told_the_way_out(refusal: Refusal, command: str, advice: str) -> None:
    name, *options = command.split()
    line = refusal(name, "gemm_sm90", *options, *PROBLEM)
    assert "no NVIDIA GPU here" in line
    assert advice in line


def test_a_store_without_mlflow_has_no_ui_and_no_address(refusal: Refusal) -> None:
    assert "no MLflow store in nowhere: `tilescout tune` makes one" in refusal("ui", "--store", "nowhere")


def test_a_folder_without_tables_is_said_to_hold_none(refusal: Refusal, tmp_path: Path) -> None:
    assert f"no table lies in {tmp_path}" in refusal("tables", str(tmp_path))


def test_a_problem_that_was_not_recorded_is_told_those_that_were(refusal: Refusal) -> None:
    line = refusal(*TUNE, "--problem", "4096x4096x4104:bf16")
    assert "holds 4096x4096x4104:bf16: measure it on a GPU, or replay one that is held" in line
    assert "; the nearest is 4096x4096x4096:bf16, of " in line
    assert line.endswith(" that `tilescout tables` lists")
    assert "the nearest is 16x4096x4096:e4m3" in refusal(*TUNE, "--problem", "20x4096x4000:e4m3")
    softmax = refusal("tune", "softmax_sm90", "--device", "replay", "--problem", "8192x4096:bf16")
    assert softmax.endswith(
        "no table of softmax_sm90 is shipped; name one with --table, or measure on a GPU; the shipped tables are of "
        "gemm_sm90 alone"
    )


def test_a_suite_that_no_table_holds_is_told_which_table_holds_the_most_of_it(refusal: Refusal) -> None:
    line = refusal(*TUNE, "--suite", "llama3-8b:decode")
    assert "gemm_sm90-h200-bf16.parquet holds 4 of the 35 problems of llama3-8b:decode; it lacks 1x6144x4096" in line
    assert line.endswith("and 27 more: leave these out with --skip-unrecorded, or measure on a GPU")
    assert "no shipped table of gemm_sm90 holds 1x5120x1280:bf16" in refusal(*TUNE, "--suite", "out-of-sample")
    e4m3 = str(next(path for path in shipped_tables() if "e4m3" in path.name))
    assert "it holds nothing of 1x8x8:bf16, only" in refusal(*TUNE, "--suite", "odd", "--table", e4m3)


def test_a_suite_of_which_two_tables_hold_parts_is_told_both(refusal: Refusal, tmp_path: Path) -> None:
    suite, most = tmp_path / "mine.toml", next(path for path in shipped_tables() if path.name.endswith("-bf16.parquet"))
    suite.write_text('problems = ["512x512x512:bf16", "16x4096x4096:bf16", "2x160x648:bf16", "1x8x8:bf16"]')
    other = next(path for path in shipped_tables() if "spread" in path.name)
    lacks = f"{most.name} holds 2 of the 4 problems of {suite}; it lacks 2x160x648:bf16, 1x8x8:bf16"
    line = refusal(*TUNE, "--suite", str(suite))
    assert f"{lacks}; of these {other} holds 2x160x648:bf16 (replay it with --table): leave these out" in line
    assert f"{lacks}: leave these out" in refusal(*TUNE, "--suite", str(suite), "--table", str(most))


def test_a_table_of_another_objective_is_told_which_one_it_holds(refusal: Refusal) -> None:
    line = refusal(*TUNE, *PROBLEM, "--objective", "sandwich")
    assert "holds times by the objective chain, asked for is sandwich: ask for chain, or measure on a GPU" in line


def test_a_missing_table_is_told(refusal: Refusal) -> None:
    assert "nothing.parquet" in refusal(*TUNE, *PROBLEM, "--table", "nothing.parquet")


def test_a_truncated_table_is_told(refusal: Refusal, tmp_path: Path) -> None:
    original = shipped_tables()[0]
    copy = tmp_path / original.name
    copy.write_bytes(original.read_bytes()[:-100])
    shutil.copy(card_path(original), card_path(copy))
    line = refusal(*TUNE, *PROBLEM, "--table", str(copy))
    assert "bytes" in line
    assert "damaged" in line


def test_a_table_of_another_space_is_told(refusal: Refusal, tmp_path: Path) -> None:
    original = shipped_tables()[0]
    copy = tmp_path / original.name
    shutil.copy(original, copy)
    card_path(copy).write_text(card_path(original).read_text().replace('"gemm_sm90"', '"gemm_sm80"', 1))
    assert "it is of the space gemm_sm80, not of gemm_sm90" in refusal(*TUNE, *PROBLEM, "--table", str(copy))


@pytest.mark.parametrize("command", [("compile", "gemm_sm90", *PROBLEM), (*TUNE, *PROBLEM)])
def test_a_store_that_can_not_be_made_is_told(refusal: Refusal, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("")
    line = refusal(*command, "--store", str(tmp_path / "file" / "store"))
    assert "can't" in line
    assert "store" in line


def test_a_result_file_that_can_not_be_written_is_told_before_the_search(refusal: Refusal, tmp_path: Path) -> None:
    assert "can't write" in refusal(*TUNE, *PROBLEM, "--json", str(tmp_path / "no" / "such" / "folder.json"))


def test_a_result_may_not_take_the_place_of_a_table_s_card(refusal: Refusal, tmp_path: Path) -> None:
    card = tmp_path / "mine.json"
    card.write_text("{}")
    (tmp_path / "mine.parquet").write_bytes(b"")
    assert "is the card of the table mine.parquet: choose another name" in refusal(*TUNE, *PROBLEM, "--json", str(card))
    assert card.read_text() == "{}"
    assert not (tmp_path / ".tilescout").exists()


@pytest.mark.parametrize(
    "arguments",
    [("tune",), ("tune", "gemm_sm90"), ("tun",), ("tune", "gemm_sm90", *PROBLEM, "--trials", "0"), ("--nonsense",)],
)
def test_a_malformed_command_is_one_line_too(refusal: Refusal, arguments: tuple[str, ...]) -> None:
    refusal(*arguments)


def test_arguments_of_the_library_are_shown_as_options() -> None:
    assert as_options("name one with `table`, or `device='cuda:1'`") == "name one with --table, or --device cuda:1"
    assert as_options("`tilescout tables` lists the `tables`; table") == "`tilescout tables` lists the `tables`; table"
