"""Passwords of addresses are in no message, and a result that can't be written is not lost."""

import json
from typing import TYPE_CHECKING

import pytest

from tilescout.search.studies.database import Database
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.texts import without_secrets

if TYPE_CHECKING:
    from conftest import ForkedScene  # type: ignore[import-not-found]

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


def test_the_name_of_a_database_has_no_password() -> None:
    address = "sqlite:///studies.db?password=hunter2"
    assert "hunter2" not in Database(address).name


def test_a_result_that_can_not_be_written_is_printed(forked_scene: "ForkedScene") -> None:
    problem = ("--problem", "1024x1024x1024:bf16")

    done = forked_scene.survives("predict", "gemm_sm90", *problem, "--json", "/dev/full", codes=(2,))

    assert "the result is printed instead" in done.stderr
    found = done.stdout[min(at for at in map(done.stdout.find, "[{") if at >= 0) :]
    assert json.JSONDecoder().raw_decode(found)[0]
