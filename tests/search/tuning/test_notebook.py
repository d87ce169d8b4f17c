"""A search in a notebook, run by a real kernel as `jupyter execute` runs it."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELL = """
from tilescout.search import tune

result = tune("gemm_sm90", "512x512x512:bf16", sampler="tpe", device="replay", budget=8, mlflow=False, progress=True)
"""


@pytest.mark.slow
def test_a_notebook_shows_the_progress_of_a_search_live_in_its_cell(tmp_path: Path) -> None:
    cell: dict[str, Any] = {"cell_type": "code", "id": "search", "metadata": {}, "execution_count": None, "outputs": []}
    cell["source"] = CELL
    notebook = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})
    shown: list[str] = []

    class Watching(NotebookClient):
        def process_message(self, message: dict[str, Any], *more: Any) -> Any:
            if message["header"]["msg_type"] == "display_data":
                shown.append(message["content"]["data"]["text/plain"])
            return super().process_message(message, *more)

    # Its own are short for a busy machine. What asyncio misses of the kernel's answers is seen when the time is over:
    # with a limit of 200 s the test once took 201 s, and passed.
    patient: dict[str, Any] = {"timeout": 60, "startup_timeout": 200, "iopub_timeout": 60}
    here = {"metadata": {"path": str(tmp_path)}}
    Watching(notebook, kernel_name="python3", resources=here, **patient).execute()

    done = [int(found[1]) for text in shown if (found := re.search(r"(\d)/8", text))]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 8
    assert any("best " in text for text in shown)
    (widget,) = [
        output.data for output in notebook.cells[0].outputs if "application/vnd.jupyter.widget-view+json" in output.data
    ]
    assert widget["application/vnd.jupyter.widget-view+json"]["model_id"]  # a saved notebook keeps the last state
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert any("8/8" in str(state) for state in states.values())
