"""Passwords of addresses are in no message, and a result that can't be written is not lost."""

import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilescout.search.studies.database import Database
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.texts import without_secrets

if TYPE_CHECKING:
    from conftest import ForkedScene  # type: ignore[import-not-found]

TILESCOUT = Path(sys.executable).with_name("tilescout")
ADDRESSES = [
    "postgresql://me:hunter2@host/name",
    "postgresql+psycopg://me:hun%40ter2hunter2@host:5432/name?sslmode=require",
    "postgresql://me:a@b/hunter2@host/name",
    "postgresql://host/name?user=me&password=hunter2",
    "mysql://host/name?ssl_key_password=hunter2&charset=utf8",
    "https://me:hunter2@mlflow.example/path",
    "https://mlflow.example/?access_token=hunter2#x",
    "https://mlflow.example/?a=1;Api-Key=hunter2",
    "s3://bucket/x?X-Amz-Signature=hunter2",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_password_is_in_no_message(address: str) -> None:
    for shown in (
        without_secrets(address),
        str(StoreError(f"can't open {address}: no such host ({address!r})")),
        one_line(StoreError(f"can't open '{address}'")),
    ):
        assert "hunter2" not in shown
        assert "***" in shown


@pytest.mark.parametrize(
    "address",
    ["sqlite:////path/studies.db", "https://mlflow.example:5000/#/experiments/1", "postgresql://me@host/name"],
)
def test_an_address_without_a_password_stays(address: str) -> None:
    assert without_secrets(address) == address


@pytest.mark.parametrize("piece", ["?pass;", "://a:", "&key", "?pass=a", "?pass=a&", "://a:b@"])
def test_long_text_takes_no_longer_than_its_length(piece: str) -> None:
    text = piece * 50_000  # with patterns that go back, each takes hours

    assert len(str(StoreError(text))) <= 4000
    assert "pass=a" not in without_secrets(text)


def test_the_name_of_a_database_has_no_password() -> None:
    address = "sqlite:///studies.db?password=hunter2"
    assert "hunter2" not in Database(address).name


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "never answers"])
def test_a_dead_server_is_told_within_ten_seconds(
    forked_scene: "ForkedScene", start_command: Callable[..., tuple[ForkServerProcess, Sequence[Path]]], answers: bool
) -> None:
    search = ("tune", "gemm_sm90", "--problem", "1024x1024x1024:bf16", "--trials", "3", "--sampler", "random")
    forked_scene.tilescout("--version")  # the first process imports all that commands import
    with ExitStack() as stack:
        started = {}
        for what, form in SERVERS.items():
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            if answers:
                listening.listen()
            address = form.format(listening.getsockname()[1])
            replay = () if what == "cluster" else ("--device", "replay", "--store", what)
            started[what] = start_command(forked_scene.folder, *search, f"--{what}", address, *replay)
        began = time.monotonic()
        for what, (process, printed) in started.items():
            process.join(120)
            done = subprocess.CompletedProcess(what, process.exitcode or 0, *(path.read_text() for path in printed))
            forked_scene.check(done, 2)
            assert "hunter2" not in done.stderr
            assert "tilescout: " in done.stderr.splitlines()[-1]
        assert time.monotonic() - began < 60  # 10 s, and what a busy machine takes; none would be told in 100 s


SERVERS = {
    "storage": "postgresql://me:hunter2@127.0.0.1:{}/studies",
    "mlflow": "postgresql+psycopg://me:hunter2@127.0.0.1:{}/mlflow",
    "cluster": "127.0.0.1:{}",
}


@pytest.mark.parametrize("arguments", [("suites",), ("suites", "--json", "-")])
def test_an_output_that_is_full_is_one_line(forked_scene: "ForkedScene", arguments: tuple[str, ...]) -> None:
    command = f"{shlex.join([str(TILESCOUT), *arguments])} > /dev/full"
    done = forked_scene.run("/bin/sh", "-c", command)
    forked_scene.check(done, 2)
    assert done.stderr == "tilescout: can't write the output: No space left on device\n"


@pytest.mark.slow
def test_a_result_that_can_not_be_written_is_printed(forked_scene: "ForkedScene") -> None:
    problem = ("--problem", "1024x1024x1024:bf16")

    done = forked_scene.survives("predict", "gemm_sm90", *problem, "--json", "/dev/full", codes=(2,))

    assert "the result is printed instead" in done.stderr
    found = done.stdout[min(at for at in map(done.stdout.find, "[{") if at >= 0) :]
    assert json.JSONDecoder().raw_decode(found)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("evaluate-model", "gemm_sm90", "--plots", "."), "is not a plot"),
        (("evaluate-model", "gemm_sm90", "--plots", "evil.py/plots"), "can't make the folder"),
        (("evaluate-model", "gemm_sm90", "--mlflow", "http://127.0.0.1:1"), "can't use the MLflow store"),
        (("train", "gemm_sm90", "--out", "evil.py/x"), "can't make the folder"),
        (("dispatcher", "gemm_sm90", "--product", "64x64", "--seconds", "nan"), "not a finite number"),
    ],
)  # fmt: skip
def test_what_can_not_be_done_is_told_before_the_work(
    forked_scene: "ForkedScene", arguments: tuple[str, ...], why: str
) -> None:
    (forked_scene.folder / "learned-problem-left-out.png").write_text("precious")

    done = forked_scene.survives(*arguments, codes=(2,))

    assert why in done.stderr
    assert "trees" not in done.stdout + done.stderr  # nothing was learned
    assert (forked_scene.folder / "learned-problem-left-out.png").read_text() == "precious"


@pytest.mark.slow
def test_a_dispatcher_replaces_nothing_of_somebody_else(forked_scene: "ForkedScene") -> None:
    place = forked_scene.folder / "store" / "dispatchers" / "gemm_sm90-h200-6144x4096-bf16.json"
    place.parent.mkdir(parents=True)
    place.write_text("precious")
    product = ("--product", "6144x4096:bf16", "--candidates", "4", "--most-rows", "16", "--device", "h200")

    done = forked_scene.survives("dispatcher", "gemm_sm90", *product, "--store", "store", codes=(2,))

    assert place.read_text() == "precious"
    assert '"kind": "tilescout dispatcher"' in done.stdout  # what was found is not lost
