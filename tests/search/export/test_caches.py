"""Compiled code that outlives its process: Inductor's cache and AOTInductor packages."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tilescout.search.export.bundle import Bundle

SERVER = """
import json, os, sys
import torch._inductor.compile_fx
import torch._inductor.package
import tilescout.search.export.inductor

for line in sys.stdin:
    program, arguments, cache = json.loads(line)
    if not (process := os.fork()):
        sys.argv[1:], os.environ["TORCHINDUCTOR_CACHE_DIR"] = arguments, cache
        exec(program, {})
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        print(json.dumps(None), flush=True)
"""

Run = Callable[..., dict[str, float] | None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """A function: run a program with arguments and a folder for Inductor's cache; what it prints, None if it fails.

    Each has a process of its own, forked off one that has imported TorchInductor: that takes seconds.
    """
    alone = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no processes of its own for Triton's kernels
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def run(program: str, *arguments: object, cache: Path) -> dict[str, float] | None:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps([program, list(map(str, arguments)), str(cache)]) + "\n")
            server.stdin.flush()
            found: dict[str, float] | None = json.loads(server.stdout.readline())
            return found

        yield run


PROGRAM = """
import ctypes, json, sys
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from tilescout.search.build.loading import load_library
from tilescout.search.export.inductor import use

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter((torch.arange(2048).view(64, 32) % 7 - 3).bfloat16())

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)  # nothing else: no C++ to be compiled

layer, x = Layer(), (torch.arange(512).view(16, 32) % 5 - 2).bfloat16()
assert config.fx_graph_cache
with use(sys.argv[1]) as tuned, torch.no_grad():
    result = torch.compile(layer)(x)
    bundle = tuned.bundle
    (kernel,) = bundle.kernels.values()
    library = load_library(bundle.path / kernel.file, kernel.sha256).name
    called = ctypes.c_int64.in_dll(ctypes.CDLL(library), "calls").value
    assert torch.equal(result, layer(x))
print(json.dumps({
    "hit": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] > 0,
    "bypasses": counters["inductor"]["fxgraph_cache_bypass"],
    "calls": called,
    "replaced": sum(tuned.report.replaced.values()),
}))
"""


@pytest.mark.slow
def test_inductors_cache_serves_a_bundle_its_own_code_and_no_other(
    run: Run, make_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    def compiled(path: Path) -> dict[str, float] | None:
        return run(PROGRAM, path, cache=tmp_path / "inductor")

    first, other = make_bundle(["16x64x32"]), make_bundle(["16x64x32"], repeats=2)
    fresh = {"hit": False, "bypasses": 0, "calls": 1, "replaced": 1}
    assert compiled(first.path) == fresh
    # The pass does not run again, and the kernel does.
    assert compiled(first.path) == {**fresh, "hit": True, "replaced": 0}
    assert compiled(other.path) == fresh
    moved = first.path.rename(tmp_path / "moved")
    elsewhere = compiled(moved)
    assert elsewhere is not None
    assert elsewhere["hit"]


LOADER = """
import ctypes, json, sys
import torch
from tilescout.search.build.loading import load_library
from tilescout.search.export.inductor import load

package, path, wanted = sys.argv[1:]
x = (torch.arange(512).view(16, 32) % 5 - 2).bfloat16()
if wanted == "loaded":
    bundle = load(path)
model = torch._inductor.aoti_load_package(package)
result = model(x)
(kernel,) = bundle.kernels.values()
library = load_library(bundle.path / kernel.file, kernel.sha256).name
called = ctypes.c_int64.in_dll(ctypes.CDLL(library), "calls").value
print(json.dumps({"calls": called, "sum": result.float().sum().item()}))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_inductor")
def test_an_aotinductor_package_runs_our_kernel_in_another_process(
    run: Run, make_bundle: Callable[..., Bundle], tmp_path: Path
) -> None:
    from tilescout.search.export.inductor import use

    bundle = make_bundle(["16x64x32"])
    layer = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)
    x = (torch.arange(512).view(16, 32) % 5 - 2).bfloat16()
    package = str(tmp_path / "model.pt2")
    with torch.no_grad():
        expected = layer(x).float().sum().item()
        exported = torch.export.export(layer, (x,))
        with use(bundle.path) as tuned:
            # Headers that are compiled ahead pay from the second model on, and this is the only one in its cache.
            once = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}
            torch._inductor.aoti_compile_and_package(exported, package_path=package, inductor_configs=once)
    assert tuned.report.replaced == {"16x64x32:bf16": 1}

    loaded, not_loaded = (
        run(LOADER, package, bundle.path, wanted, cache=tmp_path / "other") for wanted in ("loaded", "not loaded")
    )
    assert loaded is not None
    assert loaded["calls"] == 1
    assert loaded["sum"] == pytest.approx(expected, rel=2e-2)
    assert not_loaded is None
