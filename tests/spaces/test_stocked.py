"""The kernels of a space that are worth having in a store, as they are shipped with it."""

from pathlib import Path

import pytest

import tilescout.spaces as rooms
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.launched import codes_known
from tilescout.spaces.stocked import stocked
from tilescout.spaces.templates import find_template

H200 = find_device("h200")


@pytest.mark.parametrize("name", ["gemm_sm90", "gemm_streamk_sm90"])
@pytest.mark.parametrize("element_bytes", [1, 2])
def test_each_stocked_configuration_has_values_of_the_knobs_and_is_compiled_as_itself(
    name: str, element_bytes: int
) -> None:
    template = find_template(name)
    listed = stocked(Path(rooms.__path__[0]) / name, element_bytes)
    assert len(codes_known(template.knobs, listed)) == len(set(listed)) == len(listed) > 200
    assert [template.compiled_as(each) for each in listed] == list(listed)


@pytest.mark.parametrize("signature", ["bf16", "fp16-fp32", "e4m3-bf16"])
def test_the_first_space_stocks_the_kernel_of_its_default_and_each_kernel_once(signature: str) -> None:
    template, problem = find_template("gemm_sm90"), GemmProblem.parse(f"999x3840x1280:{signature}")
    compiled = template.stock_in(template.space(problem, H200))
    assert template.compiled_as(template.default(problem, H200)) in compiled
    assert len(set(compiled)) == len(compiled)


@pytest.mark.parametrize("signature", ["bf16", "e4m3-bf16"])
def test_what_defaults_are_taken_from_was_chosen_first(signature: str) -> None:
    template, problem = find_template("gemm_sm90"), GemmProblem.parse(f"999x3840x1280:{signature}")
    chosen = stocked(Path(rooms.__path__[0]) / template.name, problem.element.bytes)
    portfolio = template.portfolio(problem, H200)
    assert set(map(template.compiled_as, portfolio)) <= set(chosen[: len(portfolio)])
