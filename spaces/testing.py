"""The conformance suite of kernel templates: what compiling, searching and measuring rely on.

Subclass `TemplateConformance` in a test module, name the template, and pytest runs every check::

    from tilescout.spaces.testing import TemplateConformance

    class TestRmsNorm(TemplateConformance):
        template = "own_kernel:RmsNorm"
        problems = ("8192x4096:bf16", "100x264:fp32")
        compiles = True

No check needs a GPU. The checks are plain methods, so that they run without pytest too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from unittest import SkipTest

import numpy as np

from tilescout.spaces.devices import DEVICES, Device
from tilescout.spaces.errors import SpaceError, one_line
from tilescout.spaces.knobs import Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.workloads import Workload, load_workload

if TYPE_CHECKING:
    import torch

__all__ = ["TemplateConformance"]

_COMPILER = "cutlass"  # the package of CuteDSL
_COMPILE_SECONDS = 300  # a kernel takes seconds, on a loaded machine tens of them
_INT32 = range(-(2**31), 2**31)  # what tables hold of a knob

# What runs in a process of its own: compilers crash and hang, and a hash must not depend on the process.
_HASH = "print(template.source_hash)"
_BUILD = """
configuration, signature, arch, path = json.loads(sys.argv[2])
os.environ["CUTE_DSL_ARCH"] = arch
built = template.build(Configuration.of(configuration), signature, arch, Path(path))
print(json.dumps([built.function, built.shared_memory]))
"""
_CODE = """
import json, os, sys
from pathlib import Path
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import load_template
template = load_template(sys.argv[1])
"""


class TemplateConformance:
    """The checks; every method whose name begins with ``test_`` is one.

    Attributes
    ----------
    template
        The template's name, as `load_template` takes it: also ``module:Class``.
    problems
        Some problems that it can compute, as text: small and large ones, of every type. At least one.
    device
        The device whose rules hold, by its short name.
    compiles
        Whether the default configuration of the first problem is compiled too. That takes seconds, and is skipped where
        the compiler is not installed.
    compiler
        The package without which nothing is compiled.
    samples
        Configurations that are drawn where not all of a space can be checked.
    """

    template: ClassVar[str]
    problems: ClassVar[tuple[str, ...]]
    device: ClassVar[str] = "h200"
    compiles: ClassVar[bool] = False
    compiler: ClassVar[str] = _COMPILER
    samples: ClassVar[int] = 50

    @cached_property
    def _template(self) -> KernelTemplate:
        return load_template(self.template)

    @cached_property
    def _device(self) -> Device:
        return self._template.device(self.device)

    @cached_property
    def _workload(self) -> Workload:
        return load_workload(self._template.workload)

    @cached_property
    def _spaces(self) -> list[SearchSpace]:
        return [self._template.space(self._template.parse(text), self._device) for text in self.problems]

    def _drawn(self) -> Iterator[tuple[SearchSpace, int]]:
        """Some configurations of every space, as indices, the default first."""
        for space in self._spaces:
            default = self._template.default(space.problem, self._device)
            drawn = space.sample(self.samples, np.random.default_rng(0)).tolist()
            for index in dict.fromkeys([space.index(default), *drawn]):
                yield space, index

    def test_it_describes_itself(self) -> None:
        """It has a name, targets, and knobs that a table can hold; each rule has a reason and looks at knobs."""
        template = self._template
        assert template.name, "the template has no name"
        assert template.archs, "the template names no compiler target"
        assert template.knobs, "the template has no knob"
        names = [knob.name for knob in template.knobs]
        assert len(set(names)) == len(names), f"two knobs have one name: {names}"
        for knob in template.knobs:
            assert knob.values, f"knob {knob.name} has no value"
            assert len(set(knob.values)) == len(knob.values), f"knob {knob.name} has a value twice"
            kinds = {type(value) for value in knob.values}
            assert kinds in ({int}, {str}), f"the values of knob {knob.name} are not all integers, nor all texts"
            held = kinds == {str} or all(value in _INT32 for value in knob.values)
            assert held, f"a value of knob {knob.name} has more than 32 bits"
            assert knob.doc, f"knob {knob.name} does not say what it changes"
        for rule in template.constraints:
            assert rule.reason, f"rule {rule.name} has no reason"
            assert set(rule.knobs) <= set(names), f"rule {rule.name} looks at knobs that there are not"

    def test_problems_are_read_back_as_they_are_printed(self) -> None:
        """A problem is read back from its print, and its sizes and its signature make it up."""
        template = self._template
        assert self.problems, "name at least one problem"
        for text in self.problems:
            problem = template.parse(text)
            assert isinstance(problem, self._workload.problem), f"{text} is no problem of {template.workload}"
            assert template.parse(str(problem)) == problem, f"{problem} is read back as another problem"
            assert hash(template.parse(str(problem))) == hash(problem), f"equal problems {problem} have two hashes"
            assert str(problem).splitlines() == [str(problem)], f"{problem!r} does not print as one line"
            assert problem.with_signature(problem.signature) == problem, f"{problem} is more than sizes and signature"
            assert all(size > 0 for size in problem.sizes.values()), f"a size of {problem} is not positive"
            assert problem.bytes > 0, f"{problem} moves no bytes"
            assert problem.flops >= 0, f"{problem} has fewer than no operations"
            assert 0 < problem.tolerance < 1, f"{problem} allows any result, or none"
            template.check(problem)

    def test_a_space_holds_what_breaks_no_rule(self) -> None:
        """Every configuration is legal and there once, and a random one of the grid is in the space if it is legal."""
        draw = np.random.default_rng(0)
        for space in self._spaces:
            for rule in space.constraints:
                legal = np.asarray(rule.holds(space.columns, space.problem, space.device))
                assert legal.dtype == np.bool_, f"rule {rule.name} answers {legal.dtype}, not booleans"
                assert legal.all(), f"{space} holds configurations that break rule {rule.name}"
            assert len(np.unique(space.codes, axis=0)) == len(space), f"{space} holds a configuration twice"
            for _ in range(self.samples):
                values: dict[str, Value] = {
                    knob.name: knob.values[draw.integers(len(knob.values))] for knob in space.knobs
                }
                broken = [rule.name for rule in space.violations(values)]
                assert (values in space) != bool(broken), f"{values} breaks {broken}, and {space} disagrees"

    def test_the_default_is_legal(self) -> None:
        """The configuration that is run without a search is in the space of every problem."""
        for space in self._spaces:
            default = self._template.default(space.problem, self._device)
            broken = [f"{rule.name} ({rule.reason})" for rule in space.violations(default)]
            assert default in space, f"the default of {space.problem} breaks {', '.join(broken)}: {default}"

    def test_it_is_not_offered_for_other_targets(self) -> None:
        """A device of another compiler target is refused."""
        problem = self._spaces[0].problem
        for device in DEVICES.values():
            if device.arch not in self._template.archs:
                try:
                    self._template.space(problem, device)
                except SpaceError:
                    continue
                raise AssertionError(f"a space is offered for {device.name}, whose target {device.arch} is not named")

    def test_a_launch_is_described(self) -> None:
        """Clusters have a block or more, scratch memory no negative size, and a tiling has all configurations."""
        for space, index in self._drawn():
            blocks = self._template.blocks_per_cluster(space[index])
            assert type(blocks) is int, f"blocks of a cluster are an int, not a {type(blocks).__name__}"
            assert blocks >= 1, f"a cluster of {blocks} blocks: {space[index]}"
            scratch = self._template.scratch_bytes(space[index], space.problem)
            assert scratch >= 0, f"{scratch} bytes of scratch memory: {space[index]}"
        for space in self._spaces:
            tiling = self._template.tiling(space.columns, space.problem)
            assert tiling is None or len(tiling) == len(space), f"the tiling is not of all of {space}"

    def test_a_configuration_is_compiled_as_one_of_the_same_knobs(self) -> None:
        """The configuration that is compiled for another has its knobs, and is compiled for itself."""
        for space, index in self._drawn():
            compiled = self._template.compiled_as(space[index])
            assert set(compiled) == set(space[index]), f"{space[index]} is compiled with other knobs: {compiled}"
            assert self._template.compiled_as(compiled) == compiled, f"{compiled} is compiled as another one"

    def test_the_hash_of_the_source_is_stable(self) -> None:
        """It is a SHA-256, the same each time, and in every process."""
        found = self._template.source_hash
        assert len(found) == 64, f"{found} is no SHA-256"
        assert int(found, 16) >= 0
        assert self._template.source_hash == found, "it is another one when it is asked again"
        assert self._in_a_process(_HASH).strip() == found, "it is another one in another process"

    def test_the_workload_measures_what_a_kernel_computes(self) -> None:
        """Inputs, output, reference and the library's version fit together, on a CPU, for the edge problems."""
        import torch

        workload = self._workload
        for edge in dict.fromkeys(self._edges()):
            inputs = workload.inputs(edge, torch.Generator().manual_seed(1))
            again = workload.inputs(edge, torch.Generator().manual_seed(1))
            other = workload.inputs(edge, torch.Generator().manual_seed(2))
            assert all(map(_same, inputs, again)), f"inputs of {edge} depend on more than the generator"
            assert not all(map(_same, inputs, other)), f"inputs of {edge} are the same whatever the generator"
            output = workload.output(edge, torch.device("cpu"))
            dtype = getattr(torch, edge.result.torch_name)
            assert output.dtype == dtype, f"the output of {edge} is of {output.dtype}, not {dtype}"
            reference = workload.reference(edge, inputs)
            assert reference.dtype == torch.float32, f"the reference of {edge} is in {reference.dtype}, not in fp32"
            assert reference.shape == output.shape, f"the reference of {edge} has another shape than the output"
            assert bool(torch.isfinite(reference).all()), f"the reference of {edge} is not finite"
            assert bool(reference.any()), f"the reference of {edge} is 0 everywhere"
            assert all(map(_same, inputs, again)), f"the reference changes the inputs of {edge}"
            assert workload.library(edge), f"the library's version of {edge} has no name"
            output.fill_(torch.nan)
            workload.run_library(edge, inputs, output)
            assert not bool(output.isnan().any()), (
                f"the library's version leaves some of the output of {edge} unwritten"
            )
            passed = workload.arguments(inputs, output, 1)
            for tensor in (*inputs, output):
                assert any(tensor is each for each in passed), "a kernel is not passed every input, and the output"

    def _edges(self) -> Iterator[Problem]:
        for space in self._spaces:
            for edge in self._workload.edge_problems(space.problem):
                assert edge.signature == space.problem.signature, (
                    f"an edge problem of {space.problem} is built otherwise"
                )
                self._template.check(edge)
                yield edge

    def test_the_default_compiles(self, tmp_path: Path) -> None:
        """The default compiles to an object file that defines the function it is said to."""
        if not self.compiles:
            raise SkipTest("set compiles = True to have a configuration compiled")
        if find_spec(self.compiler) is None:
            raise SkipTest(f"the compiler is not installed: no package {self.compiler}")
        space, path = self._spaces[0], tmp_path / "kernel.o"
        default = self._template.default(space.problem, self._device)
        given = json.dumps([dict(default), space.problem.signature, self._device.arch, str(path)])
        function, shared_memory = json.loads(self._in_a_process(_BUILD, given).splitlines()[-1])
        assert path.is_file(), "no object file was written"
        assert f"__tvm_ffi_{function}".encode() in path.read_bytes(), f"the object file has no function {function}"
        held = shared_memory is None or 0 <= shared_memory <= self._device.shared_memory
        assert held, f"a launch asks for {shared_memory} bytes of shared memory, of {self._device.shared_memory}"

    def _in_a_process(self, code: str, *arguments: str) -> str:
        """The standard output of code that finds the template as ``template``, in a fresh interpreter."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "1"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CODE + code, self.template, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=_COMPILE_SECONDS,
        )
        assert done.returncode == 0, f"a process of its own failed: {one_line(done.stderr[-2000:], 2000)}"
        return done.stdout


def _same(one: "torch.Tensor", other: "torch.Tensor") -> bool:
    import torch

    # Of types of 8 bits torch compares none: their bytes are.
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
