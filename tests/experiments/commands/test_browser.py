"""The views of a study: the MLflow UI and the page of ``tilescout report`` in a headless Chromium."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="needs playwright: `make setup` installs it")
from playwright.sync_api import Page, expect, sync_playwright

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.folders import studies
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyInfo, StudyResult
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking import MlflowTracker, default_store
from tilescout.search.tracking.page import to_html
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.templates import find_template

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, for example `apt-get install chromium`"),
]
PATIENCE = 60_000  # milliseconds; a busy machine is no failure


@pytest.fixture(scope="module")
def study(
    tmp_path_factory: pytest.TempPathFactory, copy_store: Callable[[Path], str]
) -> tuple[Path, StudyResult, MlflowTracker]:
    """A store with a study of 200 replayed trials, its result and what tracked it."""
    store = tmp_path_factory.mktemp("store")
    copy_store(store)
    uri, root = default_store(store)
    trackers: list[MlflowTracker] = []

    def make_tracker(info: StudyInfo, run_id: str | None) -> MlflowTracker:
        trackers.append(MlflowTracker(uri, root, info, run_id))
        return trackers[0]

    template = find_template("gemm_sm90")
    problem = template.parse("4096x14336x4096:bf16")
    with Evaluator(ReplayEngine(default_table(template, problem), template), problem) as evaluator:
        options = TuneOptions("random", 0, Budget(trials=200), studies(store))
        result = run_study(evaluator, options, make_tracker)
    assert not result.not_tracked
    return store, result, trackers[0]


@pytest.fixture(scope="module")
def ui(
    study: tuple[Path, StudyResult, MlflowTracker], held_port: Callable[[], AbstractContextManager[int]]
) -> Iterator[str]:
    """The address of ``tilescout ui`` on the store."""
    command = [str(Path(sys.executable).with_name("tilescout")), "ui", "--store", str(study[0]), "--port"]
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with held_port() as port, subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + PATIENCE / 1000
            while True:
                try:
                    direct.open(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None
                    assert time.monotonic() < deadline, "the UI does not answer"
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of the browser; it is wide, so that the UI leaves out no column."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*sandbox, "--no-proxy-server"])
        page = browser.new_page(viewport={"width": 2600, "height": 1400})
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield page
        browser.close()


def test_a_study_of_200_trials_explains_itself_in_the_mlflow_ui(
    study: tuple[Path, StudyResult, MlflowTracker], ui: str, page: Page
) -> None:
    _, result, tracker = study
    best, default = result.best, result.default
    assert best is not None
    assert default is not None
    page.goto(ui + tracker.page)
    expect(page.get_by_text(re.compile(rf"^Best: {best.measurement.time_us:.2f} µs"))).to_be_visible()
    expect(page.get_by_text("times the speed of torch.mm").first).to_be_visible()
    page.get_by_text("Show more", exact=True).click()
    row = page.get_by_role("row", name=f"best, trial {best.number}")
    expect(row).to_contain_text(re.compile(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]"))
    expect(page.get_by_text("no GPU was used").first).to_be_visible()
    heat_map = page.locator("img[src*='heat_map.png']")
    expect(heat_map).to_have_js_property("naturalWidth", 860)  # it is there, and not a broken picture
    expect(page.get_by_text("gemm_sm90-h200-bf16.parquet").first).to_be_visible()  # the dataset
    names = (re.compile("^Parallel coordinates of"), "all trials, the fastest first", re.compile("^artifacts$"))
    link, table, artifacts = (page.get_by_role("link", name=name).get_attribute("href") for name in names)

    page.goto(f"{ui}{artifacts}")
    for name in ("convergence.png", "importance.png", "heat_map.png", "gpu_seconds.png", "trials.csv"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()

    page.goto(f"{ui}{table}")
    expect(page.get_by_text("matching runs")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile(r"^trial \d+$")).first).to_have_text(f"trial {best.number}")
    page.get_by_role("button", name="Columns", exact=True).click()
    tree = page.locator("[class*=tree-treenode]", has_text="Parameters")
    tree.locator("[class*=tree-checkbox]").first.click()
    page.keyboard.press("Escape")
    for knob in ("cluster_m", "schedule", "stages"):  # those that fit: it draws no column out of sight
        expect(page.get_by_role("columnheader", name=knob).first).to_be_attached()

    page.goto(f"{ui}{link}")
    expect(page.get_by_text("Parallel Coordinates Plot")).to_be_visible()
    expect(page.locator(".parcoords, .js-plotly-plot").first).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Comparing \d+ Runs from 1 Experiment$"))).to_be_visible()


def test_the_front_page_is_two_clicks_from_the_best_configuration(
    study: tuple[Path, StudyResult, MlflowTracker], ui: str, page: Page
) -> None:
    _, result, _ = study
    assert result.best is not None
    fresh = page.context.browser.new_page(viewport={"width": 1440, "height": 900})  # type: ignore[union-attr]
    fresh.set_default_timeout(PATIENCE)
    with fresh.expect_response(re.compile("experiments/search")):
        fresh.goto(ui)
    fresh.get_by_role("link", name="tilescout/gemm_sm90", exact=True).click()
    expect(fresh.get_by_text("1 matching run", exact=False)).to_be_visible()  # the study, and none of its trials
    for column in ("best_speedup_over_library", "trials", "cost_gpu_seconds"):
        expect(fresh.get_by_role("columnheader", name=column).first).to_be_visible()
    heading = fresh.get_by_role("columnheader", name="best_speedup_over_library").locator("span").first
    assert heading.evaluate("each => each.scrollWidth <= each.clientWidth")  # it is not cut
    fresh.get_by_role("link", name=re.compile("^random ")).first.click()
    expect(fresh.get_by_text(re.compile(rf"^Best: {result.best.measurement.time_us:.2f} µs"))).to_be_visible()
    found = fresh.locator("code", has_text=str(result.best.configuration)).bounding_box()
    folded = fresh.get_by_text("Show more", exact=True).bounding_box()
    assert found is not None
    assert folded is not None
    assert found["y"] + found["height"] < folded["y"]  # without another click
    fresh.close()


def test_a_report_is_complete_loads_nothing_and_sorts_in_both_themes(
    study: tuple[Path, StudyResult, MlflowTracker], page: Page, tmp_path: Path
) -> None:
    store, result, _ = study
    file = tmp_path / "report.html"
    file.write_text(to_html(read_study(result.info.name, studies(store))), encoding="utf-8")
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for theme, dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.goto(file.as_uri())
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour))) < 200) == dark
    desktop = page.viewport_size
    assert desktop is not None
    page.set_viewport_size({"width": 375, "height": 800})  # a phone's: nothing but plots and trials is wider
    beyond = "each => each.getBoundingClientRect().right > 376 && !each.closest('figure, .scroll')"
    assert page.evaluate(f"[...document.querySelectorAll('body *')].filter({beyond}).length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.set_viewport_size(desktop)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []

    expect(page.locator(".verdict")).to_contain_text("times the speed of torch.mm")
    for plot in ("convergence", "importance", "heat_map", "gpu_seconds"):
        box = page.locator(f"#plot-{plot} svg").bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 150
    rows = page.locator(".trials tbody tr")
    assert rows.count() == 200
    page.get_by_role("columnheader", name="time_us").click()
    assert result.best is not None
    expect(rows.first.locator("td").first).to_have_text(str(result.best.number))
    page.get_by_role("columnheader", name="time_us").click()
    expect(rows.first.locator("td").first).not_to_have_text(str(result.best.number))
