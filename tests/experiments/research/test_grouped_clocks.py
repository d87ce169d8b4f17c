"""The study that tells the reasons for time over the floor from the time of a launch and its clock."""

import pytest

from tilescout.experiments.research.studies.grouped_clocks import chosen, drawn_anew, means, told
from tilescout.experiments.research.studies.grouped_floor import BYTES_A_SECOND, floor_us
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE
from tilescout.spaces.knobs import Configuration

FULL = GroupedProblem.parse("128x32768x1536x2048:bf16:balanced")  # 256 rows for each expert: two tiles that are full


def test_a_kernel_at_the_rate_of_the_tensor_cores_keeps_them_busy_and_of_memory_its_bytes() -> None:
    configuration = TEMPLATE.default(FULL, DEVICES["h200"])
    us = FULL.flops / (132 * 4096 * 1500)
    found = told(FULL, configuration, us, 1500)
    assert found["multiplied"] == 1
    assert found["tensor cores"] == pytest.approx(1)
    assert found["over"] == pytest.approx(us / floor_us(FULL))
    assert found["memory"] == pytest.approx(FULL.bytes / BYTES_A_SECOND * 1e6 / us)
    slower = told(FULL, configuration, 2 * us, 1500)
    assert slower["tensor cores"] == pytest.approx(0.5)
    assert told(FULL, configuration, us, 3000)["tensor cores"] == pytest.approx(0.5)


def test_rows_of_tiles_that_are_not_full_count_as_multiplied() -> None:
    uneven = GroupedProblem.parse("4x130x256x256:bf16:recorded-129.0.0.1")
    found = told(uneven, TEMPLATE.default(FULL, DEVICES["h200"]), 10.0, 1500)
    assert found["multiplied"] == pytest.approx(3 * 128 / 130)


@pytest.mark.parametrize("draws", ["", ":draws-0-3"])
def test_kernels_are_watched_on_one_draw_that_nothing_was_chosen_on(draws: str) -> None:
    assert str(drawn_anew(GroupedProblem.parse(f"8x64x256x256:bf16:zipf-1{draws}"))).endswith("zipf-1:draws-1000-1000")


def test_the_kernel_is_the_one_that_won_the_race() -> None:
    rows = [{"configuration": {"tile_m": at}, "ratio": ratio} for at, ratio in enumerate((0.8, 0.7, 0.9))]
    record = {"spaces": {"quack_varlen": [], "grouped_streamk_sm90": rows}}
    assert chosen(record) == ("grouped_streamk_sm90", Configuration.of({"tile_m": 1}))
    rows[0]["raced"], rows[1]["raced"] = 0.7, 0.75
    assert chosen(record)[1] == Configuration.of({"tile_m": 0})


def test_means_tell_even_from_uneven_routing() -> None:
    one = told(FULL, TEMPLATE.default(FULL, DEVICES["h200"]), 300.0, 1500) | {
        "us": 300.0,
        "sm_mhz": 1500,
        "power_w": 600,
    }
    found = means({str(FULL): one, "8x64x256x256:bf16:zipf-1": one | {"us": 500.0}})
    assert found["balanced"]["us"] == 300
    assert found["uneven"]["us"] == 500
