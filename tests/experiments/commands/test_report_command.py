"""``tilescout report``: one page with everything, whatever became of the study."""

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tilescout.costmodel.estimator import Expected
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.search.measure.race import Estimate, Race
from tilescout.search.studies.folders import studies
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking.page import to_html
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.templates import find_template

PROBLEM = "4096x14336x4096:bf16"
HOSTILE = "<script>alert('x')</script>&\"<img src=http://host/x>"
KNOBS = [Configuration.of({"rows": rows, "threads": threads, "order": "a"}) for rows in (1, 2) for threads in (64, 256)]
LIVE = Provenance("live", HOSTILE)
INFO = StudyInfo(
    "study", "softmax", "ab12", NamedProblem("64x64"), "h200", "random", 0, LIVE, KNOBS[0], "lib", 8.0
)  # fmt: skip


def result(*ratios: float | None, race: Race | None = None, info: StudyInfo = INFO) -> StudyResult:
    """A study whose trials took these times, of the library's; None is one that was wrong. Trial 0 is the default."""
    trials = []
    for number, ratio in enumerate(ratios):
        timing = None if ratio is None else Timing(ratio, ratio, ratio, ratio * 0.99, ratio * 1.01, info.library_us, 9)
        measurement = (
            Measurement(Status.WRONG, HOSTILE, gpu_seconds=0.5)
            if timing is None
            else Measurement(Status.OK, timing=timing, gpu_seconds=0.5, verify_seconds=0.1)
        )
        expected = Expected(8.0, 7.0, 9.0) if timing is not None else None
        configuration = KNOBS[number % len(KNOBS)]
        trials.append(TrialRecord(number, number, configuration, measurement, 1e9 + number, 1e9 + number + 1, expected))
    return StudyResult(info, trials, 3.0, race=race)


def loaded_by(page: str) -> list[str]:
    """Whatever a browser would fetch for a page."""
    found: list[str] = []

    class Look(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            if tag in {"base", "embed", "iframe", "img", "link", "object"}:
                found.append(tag)
            for name, value in attributes:
                if name in {"action", "data", "href", "src", "srcset", "xlink:href"} or "url(" in (value or ""):
                    target = (value or "").partition("url(")[2] or value or ""
                    if not target.startswith(("#", "data:image/png;base64,")):
                        found.append(target)

    Look().feed(page)
    return found + re.findall(r"@import|url\((?!#)", page)


@pytest.mark.parametrize(
    ("study", "verdict"),
    [
        (result(), "No trial worked."),
        (result(None, None, None), "No trial worked."),
        (result(1.0, 0.8, None, 1.2, 0.9, 1.1, 1.3, 1.4, 1.5, 1.6), "Best: 6.40 µs, 1.250 [1.238, 1.263] times"),
        (result(1.0), "and it is the default configuration"),
    ],
    ids=["no trial", "only failures", "no race", "one trial"],
)
def test_a_page_of_any_study_says_what_was_found_and_loads_nothing(study: StudyResult, verdict: str) -> None:
    page = to_html(study)
    assert verdict in page
    assert HOSTILE not in page
    assert page.count("<script>") == 1  # the page's own
    assert loaded_by(page) == []
    assert page.count('<tr class="answer">') == (study.best is not None)


def test_plots_are_those_that_the_study_has_something_to_show_in() -> None:
    plots = {name: re.findall(r'id="plot-(\w+)"', to_html(study)) for name, study in {
        "none": result(), "failures": result(None, None), "many": result(*[1 + n / 10 for n in range(12)]),
    }.items()}  # fmt: skip
    assert plots["none"] == ["convergence"]
    assert plots["failures"] == ["convergence", "gpu_seconds"]
    assert plots["many"] == ["convergence", "importance", "heat_map", "predicted", "gpu_seconds"]
    page = to_html(result(*[1 + n / 10 for n in range(12)]))
    assert "rows and threads" in page or "threads and rows" in page  # this space has no tile_m and tile_n
    assert "#1f3b73" not in page.split("</style>")[1]  # the themes choose the colours
    assert len(re.findall(r'\bid="', page)) == len(set(re.findall(r'\bid="([^"]+)"', page)))


def test_a_race_gives_the_verdict() -> None:
    ratios = {0: Estimate(1.0, 0.99, 1.01), 1: Estimate(0.8, 0.79, 0.81)}
    race = Race(1, 1, ratios, Estimate(0.8, 0.795, 0.805), 0.99, 30, {0: 30, 1: 30})
    page = to_html(result(1.0, 0.81, race=race))
    assert "1.250 [1.242, 1.258] times that of the default" in page
    assert "proven at least as fast as the default" in page
    beaten = replace(race, answer=0, over_default=Estimate(0.99, 0.97, 1.01))
    assert "so the default is the answer" in to_html(result(1.0, 0.81, race=beaten))


def test_a_study_is_read_back_as_it_was_found(tmp_path: Path) -> None:
    template = find_template("gemm_sm90")
    problem = template.parse(PROBLEM)
    with Evaluator(ReplayEngine(default_table(template, problem), template), problem) as evaluator:
        found = run_study(evaluator, TuneOptions("guided", 0, Budget(trials=12), studies(tmp_path)))
    (journal,) = Path(studies(tmp_path)).glob("*.journal")
    read = read_study(str(journal), studies(tmp_path))
    numbered = [replace(trial, index=trial.number) for trial in found.trials]
    assert read == replace(found, trials=numbered, info=read.info)
    assert read.info.to_dict() == found.info.to_dict()
    assert all(trial.expected is not None for trial in read.trials)
    assert read.info.hindsight  # the shipped model knows the shipped table's problems


def test_the_command_writes_the_page_and_takes_a_model(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    template = find_template("gemm_sm90")
    problem = template.parse(PROBLEM)
    with Evaluator(ReplayEngine(default_table(template, problem), template), problem) as evaluator:
        options = TuneOptions("random", 0, Budget(trials=10), studies(Path(".tilescout")))
        name = run_study(evaluator, options).info.name
    run("report", name)
    page = Path(f"{name}.html").read_text(encoding="utf-8")
    assert "plot-predicted" not in page
    import tilescout.costmodel

    model = Path(str(tilescout.costmodel.__file__)).with_name("pretrained") / "gemm_sm90-h200.npz"
    run("report", f".tilescout/studies/{name}.journal", "--out", "r.html", "--model", str(model))
    assert 'id="plot-predicted"' in Path("r.html").read_text(encoding="utf-8")
    capsys.readouterr()
    run("report", "nothing", code=2)
    assert f"there are: {name}" in capsys.readouterr().err
    run("report", name, "--out", "no/such/folder.html", code=2)
    assert "can't write no/such/folder.html" in capsys.readouterr().err
