"""The clocks where there is no GPU: nothing is known, nothing breaks, and the result says so."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from tilescout.search.engines.jobs import provenance_of
from tilescout.search.measure import worker
from tilescout.search.measure.clocks import UNREAD, ClockSampler, NoClocksError
from tilescout.search.measure.machine import HostMachine
from tilescout.search.measure.protocol import Objective


@pytest.mark.parametrize("uuid", ["00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000000"])
def test_a_gpu_that_nvml_does_not_know_has_no_sampler_and_the_reason_is_told(uuid: str) -> None:
    with pytest.raises(NoClocksError, match=r"\S"):
        ClockSampler.of(uuid)


def test_a_driver_that_refuses_what_the_estimator_goes_by_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ModuleType("pynvml")

    def refuse(handle: object) -> int:
        raise RuntimeError("Not Supported")

    vars(nvml).update(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetCurrentClocksEventReasons=refuse,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    with pytest.raises(NoClocksError, match=r"^Not Supported$"):
        ClockSampler.of("GPU-1")


@pytest.mark.parametrize(
    ("product", "gpus", "nvml", "objective", "where", "line"),
    [
        ("NVIDIA H200", 2, "580.1", Objective.CHAIN, "", "measured on 2 NVIDIA H200, in chains"),
        ("CPU", 1, "", Objective.SANDWICH, "", "measured on CPU, in sandwiches"),
        (
            *("NVIDIA H200", 1, f"{UNREAD}: Driver Not Loaded", Objective.CHAIN, " of a cluster"),
            "measured on NVIDIA H200 of a cluster, in chains; the GPU's clocks are not known, NVML is unreadable: "
            "Driver Not Loaded",
        ),
    ],
)
def test_where_nvml_can_not_be_read_the_line_about_the_measurements_says_so(
    product: str, gpus: int, nvml: str, objective: Objective, where: str, line: str
) -> None:
    made = provenance_of(product, gpus, {"nvml": nvml} if nvml else {}, objective, where)

    assert (made.kind, made.description, made.objective) == ("live", line, objective)


@pytest.mark.parametrize(("mode", "shared"), [(0, True), (2, False), (3, False), (None, False)])
def test_a_gpu_is_shared_unless_it_is_for_one_process_or_nothing_tells(mode: int | None, shared: bool) -> None:
    class NVMLError(Exception):
        pass

    def compute_mode(handle: object) -> int:
        if mode is None:
            raise NVMLError
        return mode

    nvml = SimpleNamespace(NVMLError=NVMLError, NVML_COMPUTEMODE_DEFAULT=0, nvmlDeviceGetComputeMode=compute_mode)
    assert ClockSampler(nvml, None, "", "").is_shared() == shared


def test_a_session_is_held_only_where_it_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker._with_device("cpu") is not None
    with monkeypatch.context() as patch:
        patch.setattr(HostMachine, "used", 0.6)
        assert worker._with_device("cpu") is None
    monkeypatch.setattr(HostMachine, "is_shared", False)
    assert worker._with_device("cpu") is None


def test_the_host_has_neither_clocks_nor_other_users() -> None:
    machine = HostMachine()

    assert machine.clocks() is None
    assert machine.other_processes(host=os.getppid()) == 0
    assert "nvml" not in machine.versions()
