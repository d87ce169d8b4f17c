"""The lists of other projects that are compiled ahead for the study of all backends, once for each signature."""

from collections.abc import Sequence
from typing import Any

from tilescout.experiments.research.backend_entrants import begin_compiling, choices
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template


class Listing:
    """An engine that notes what it is asked to compile."""

    def __init__(self, space: str) -> None:
        self.template: KernelTemplate = find_template(space)
        self.device = find_device("NVIDIA H200")
        self.asked: list[tuple[Configuration, str]] = []

    def space(self, problem: GemmProblem) -> SearchSpace[Any]:
        return self.template.space(problem, self.device)

    def expect(self, configuration: Configuration, signature: str) -> None:
        self.asked.append((configuration, signature))


def asked_of(space: str, problems: Sequence[str]) -> Listing:
    engine = Listing(space)
    begin_compiling({space: engine}, [GemmProblem.parse(text) for text in problems])  # type: ignore[dict-item]
    return engine


def test_what_others_list_is_compiled_ahead_for_each_signature_and_ours_is_not() -> None:
    quack = asked_of("quack_sm90", ["64x64x64:bf16", "512x512x512:bf16", "512x512x512:e4m3-bf16"])
    problem = GemmProblem.parse("512x512x512:bf16")
    listed = choices(quack.template, quack, problem)["Quack, tuned"]  # type: ignore[arg-type]

    assert {signature for _, signature in quack.asked} == {"bf16", "e4m3-bf16"}
    assert set(listed) <= {configuration for configuration, signature in quack.asked if signature == "bf16"}
    assert asked_of("gemm_sm90", ["512x512x512:bf16"]).asked == []


def test_what_no_kernel_of_a_list_computes_is_left_out() -> None:
    assert asked_of("quack_sm90", ["512x512x512:bf16:bias+gelu"]).asked == []
