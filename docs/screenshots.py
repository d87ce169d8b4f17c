"""The pictures of the documentation: a study in the MLflow UI and its report, as Chromium shows them.

    python docs/screenshots.py --store .tilescout --study NAME

Takes a study of a store, as `tilescout tune` leaves it, and writes PNG files to docs/images. Needs Chromium, and the
packages of the extra `dev`.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tilescout.search.tracking import STUDY_TAG, TRIAL_TAG, UI_MODE, default_store

OUT = Path(__file__).parent / "images"
COMMAND = str(Path(sys.executable).with_name("tilescout"))
COLOURS = 96  # of a picture's palette; text stays readable and the files small


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--study", required=True, help="name of the study")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    experiment, run = parent_of(options.store, options.study)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's own refuses root
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder, served(options.store) as address:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=[*sandbox, "--no-proxy-server"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        picture_ui(page, f"{address}/#/experiments/{experiment}/runs/{run}?{UI_MODE}")
        report = Path(folder, "report.html")
        command = [COMMAND, "report", options.study, "--store", str(options.store), "--out", str(report)]
        subprocess.run(command, check=True)
        page.set_viewport_size({"width": 1000, "height": 1150})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.goto(report.as_uri())
            keep(page, f"report-{theme}")
        browser.close()


def picture_ui(page: Page, address: str) -> None:
    """The study's run, and its trials on parallel coordinates."""
    page.goto(address)
    link = page.get_by_text("Parallel coordinates of")
    link.wait_for()
    page.get_by_text("Show more", exact=True).click()
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    keep(page, "mlflow-study")
    page.goto(f"{address.partition('#')[0]}{link.get_attribute('href')}")  # a click opens another tab
    page.locator(".parcoords, .js-plotly-plot").first.wait_for()
    page.wait_for_timeout(2000)  # it draws in steps
    keep(page, "mlflow-parallel-coordinates")


def keep(page: Page, name: str) -> None:
    """Write what the page shows, with few colours."""
    path = OUT / f"{name}.png"
    page.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def parent_of(store: Path, study: str) -> tuple[str, str]:
    """The experiment and the run of a study."""
    client = MlflowClient(default_store(store)[0])
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`{STUDY_TAG}` = '{study}'", max_results=5000)
    parent = next(run for run in found if TRIAL_TAG not in run.data.tags)
    return parent.info.experiment_id, parent.info.run_id


@contextmanager
def served(store: Path) -> Iterator[str]:
    """The address of the MLflow UI on a store."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen([COMMAND, "ui", "--store", str(store), "--port", str(port)]) as server:
        try:
            while server.poll() is None:
                try:
                    direct.open(f"{address}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield address
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
