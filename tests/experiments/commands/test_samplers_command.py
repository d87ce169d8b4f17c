"""``tilescout samplers``, and what ``tune --help`` says of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click import Context

from tilescout.experiments.commands.completion import TABLE, complete_samplers, complete_suites
from tilescout.experiments.commands.samplers import samplers
from tilescout.experiments.commands.tune import tune
from tilescout.search.samplers import SAMPLERS
from tilescout.search.tables.shipped import shipped_tables


def test_samplers_lists_each_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    samplers.main(["--json", "-"], standalone_mode=False)
    captured = capsys.readouterr()
    found = {each["sampler"]: each for each in json.loads(captured.out)}
    assert list(found) == list(SAMPLERS)
    for name, kind in SAMPLERS.items():
        assert found[name]["summary"] == kind.summary
        assert [each["name"] for each in found[name]["options"]] == [option.name for option in kind.options]
        assert name in captured.err


def test_samplers_shows_the_options_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    samplers.main(["lfbo"], standalone_mode=False)
    printed = capsys.readouterr().out
    for option in SAMPLERS["lfbo"].options:
        assert option.name in printed


def test_the_help_of_tune_describes_every_sampler() -> None:
    text = " ".join(tune.get_help(Context(tune, info_name="tune")).split())
    for name, kind in SAMPLERS.items():
        assert f"{name} {kind.summary}" in text


def test_the_samplers_of_a_broken_package_keep_no_others_from_being_listed(
    run: Callable[..., None], install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("broken-samplers", "broken", "import a_module_that_nobody_has", "Broken", "tilescout.samplers")
    wrong = "sampler 'broken' of broken-samplers 1.0 is broken"

    run("samplers", "--json", "-")
    printed = capsys.readouterr()
    *ours, broken = json.loads(printed.out)
    assert "lfbo" in [each["sampler"] for each in ours]
    assert broken["summary"].startswith(wrong)
    assert wrong in " ".join(printed.err.split())

    run("tune", "--help")
    assert wrong in " ".join(capsys.readouterr().out.split())


def test_the_tab_key_offers_samplers_behind_a_comma_suites_and_tables() -> None:
    context = Context(tune)
    assert complete_samplers(context, tune.params[0], "random,guided-") == ["random,guided-cold"]
    assert [item.value for item in complete_suites(context, tune.params[0], "ground")] == ["ground-truth"]
    named = [item.value for item in TABLE.shell_complete(context, tune.params[0], "gemm_sm90")]
    assert named == [path.stem for path in shipped_tables() if path.stem.startswith("gemm_sm90")]
    assert [item.type for item in TABLE.shell_complete(context, tune.params[0], "no-such")] == ["file"]


def test_a_shipped_table_goes_by_its_name_unless_a_file_here_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = shipped_tables()[0]
    assert TABLE.convert(shipped.stem, None, None) == shipped
    (tmp_path / shipped.stem).write_bytes(b"")
    assert TABLE.convert(shipped.stem, None, None) == Path(shipped.stem)
