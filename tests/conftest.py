"""Tests marked `gpu` run where there is a Hopper GPU and skip everywhere else; properties may take their time."""

import subprocess

import hypothesis
import pytest

hypothesis.settings.register_profile("tilescout", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("tilescout")


def has_hopper() -> bool:
    """Asked of nvidia-smi, so that the process that runs the tests holds no CUDA context."""
    try:
        ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and "9.0" in done.stdout.split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_hopper():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU of compute capability 9.0"))
