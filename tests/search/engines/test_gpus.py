"""The GPUs of a machine, by a driver that is a library of these tests."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count(void) { const char *chosen = getenv("CUDA_VISIBLE_DEVICES"); return chosen && !*chosen ? 0 : 2; }
int cuInit(unsigned flags) {
    FILE *starts = fopen(getenv("STARTS"), "a");
    fputc('.', starts);
    fclose(starts);
    return 0;
}
int cuDeviceGetCount(int *found) { *found = count(); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H200", size); return 0; }
"""

ASK = """
import os
import sys
from pathlib import Path

from tilescout.search.engines import gpus

gpus._SHOWN = (Path(sys.argv[1]),)
gpus.know_ahead()
print(gpus.visible_gpus(), gpus.visible_gpus())
os.environ["CUDA_VISIBLE_DEVICES"] = ""
print(gpus.visible_gpus())
del os.environ["CUDA_VISIBLE_DEVICES"]
Path(sys.argv[1], "0000:01:00.0").mkdir()
print(gpus.visible_gpus())
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver for processes that are started, and the file that has a byte for each time that it was."""
    compiler = shutil.which("gcc") or shutil.which("cc") or pytest.skip("needs a C compiler")
    source, found = tmp_path / "driver.c", tmp_path / "starts"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    found.touch()
    monkeypatch.setenv("STARTS", str(found))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def asked(shown: Path) -> list[str]:
    """The lines of a process that has asked ahead, then asks twice, with no GPU chosen, and with a further GPU."""
    command = [sys.executable, "-P", "-c", ASK, str(shown)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_what_was_told_ahead_holds_as_long_as_the_same_gpus_are_there_and_chosen(tmp_path: Path, starts: Path) -> None:
    shown = tmp_path / "shown"
    (shown / "0000:00:00.0").mkdir(parents=True)
    assert asked(shown) == [f"{['NVIDIA H200'] * 2} {['NVIDIA H200'] * 2}", "[]", f"{['NVIDIA H200'] * 2}"]
    assert starts.read_text() == "..."  # ahead, then as none was chosen, then as there was another


def test_where_the_driver_shows_no_gpus_it_is_asked_each_time(tmp_path: Path, starts: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    assert asked(shown)[0] == f"{['NVIDIA H200'] * 2} {['NVIDIA H200'] * 2}"
    assert len(starts.read_text()) == 4
