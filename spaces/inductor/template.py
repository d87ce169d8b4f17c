"""The template of products by TorchInductor with one of its backends alone."""

from collections.abc import Mapping
from pathlib import Path

from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inductor.loader import BACKENDS, describe
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.templates import Built, KernelTemplate


class InductorTemplate(KernelTemplate[GemmProblem]):
    """Products that TorchInductor tunes itself, in seconds to a minute: there is nothing to search, only to compare."""

    name = "inductor"
    summary = "matrix products, as TorchInductor's max-autotune compiles them"
    package = "tilescout.spaces.inductor"
    sources = ("tuning.py",)
    workload = "tilescout.spaces.gemm:Gemm"
    loader = "tilescout.spaces.inductor.loader:Inductor"
    archs: tuple[str, ...] = ("sm_90a", "sm_100a", "sm_120a")
    knobs = (Knob("backend", BACKENDS, "the backend whose candidates TorchInductor times"),)

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        return Configuration.of({"backend": BACKENDS[0]})

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        path.write_text(describe(configuration, signature))
        return Built("inductor", None)


TEMPLATE = InductorTemplate()
