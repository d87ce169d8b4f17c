"""Kernels that a device loads before a problem is asked for."""

import threading

import pytest
import torch

from tilescout.search.measure.worker import Worker, load_kernels


def no_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("the device is full")


def test_nothing_is_left_running() -> None:
    before = set(threading.enumerate())
    load_kernels(torch.device("cpu"))
    assert set(threading.enumerate()) == before


def test_a_device_without_memory_is_told_of_and_a_worker_waits_for_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "bmm", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        load_kernels(torch.device("cpu"))
    Worker("cpu").warm_up()
