"""Compiled code that outlives its process: Inductor's cache and AOTInductor packages."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tilescout.search.export.bundle import Bundle

PROGRAM = """
import ctypes, json, sys
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from tilescout.search.export.inductor import use

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter((torch.arange(2048).view(64, 32) % 7 - 3).bfloat16())

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)  # nothing else: no C++ to be compiled

layer, x = Layer(), (torch.arange(512).view(16, 32) % 5 - 2).bfloat16()
assert config.fx_graph_cache
for path in sys.argv[1:]:
    torch._dynamo.reset()
    counters.clear()
    with use(path) as tuned, torch.no_grad():
        result = torch.compile(layer)(x)
        bundle = tuned.bundle
        (kernel,) = bundle.kernels.values()
        called = ctypes.c_int64.in_dll(ctypes.CDLL(str(bundle.path / kernel.file)), "calls").value
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
    make_bundle: Callable[..., Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))

    def run(*bundles: Path) -> list[dict[str, Any]]:
        command = [sys.executable, "-c", PROGRAM, *map(str, bundles)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()[-len(bundles) :]]

    first, other = make_bundle(["16x64x32"]).path, make_bundle(["16x64x32"], repeats=2).path
    fresh = {"hit": False, "bypasses": 0, "calls": 1, "replaced": 1}
    assert run(first, other) == [fresh, fresh]
    # The same bundle, elsewhere, in another process: the pass does not run again, and the kernel does.
    assert run(first.rename(tmp_path / "moved")) == [{**fresh, "hit": True, "replaced": 0}]


LOADER = """
import ctypes, json, sys
import torch
from tilescout.search.export.inductor import load

package, path, wanted = sys.argv[1:]
x = (torch.arange(512).view(16, 32) % 5 - 2).bfloat16()
if wanted == "loaded":
    bundle = load(path)
model = torch._inductor.aoti_load_package(package)
result = model(x)
(kernel,) = bundle.kernels.values()
called = ctypes.c_int64.in_dll(ctypes.CDLL(str(bundle.path / kernel.file)), "calls").value
print(json.dumps({"calls": called, "sum": result.float().sum().item()}))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_inductor")
def test_an_aotinductor_package_runs_our_kernel_in_another_process(
    make_bundle: Callable[..., Bundle], tmp_path: Path
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
            torch._inductor.aoti_compile_and_package(exported, package_path=package)
    assert tuned.report.replaced == {"16x64x32:bf16": 1}

    def run(wanted: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LOADER, package, str(bundle.path), wanted]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("loaded")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] == 1
    assert found["sum"] == pytest.approx(expected, rel=2e-2)
    assert run("not loaded").returncode != 0
