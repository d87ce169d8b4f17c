"""The kernels of loaded bundles in this process, and the choice of the one that runs on given tensors."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from tilescout.search.build.loading import Launch, LoadedKernel, load_described, load_launch
from tilescout.search.export.bundle import Bundle, Kernel, loader_of, read_bundle
from tilescout.search.export.ranges import Lookup, Range, family
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ArtifactError, BundleError, DeviceError, SpaceError, one_line
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import NONE_NAMED, Named
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

HOST = "host"  # the target of kernels that run on the CPU
LIBRARY = Gemm()  # the same by torch itself
ALIGNMENT = 16  # bytes: what TMA needs, and what kernels were promised
# Bytes that the library takes operands to be aligned to when it says what is legal, unless it is told of fewer
# (`CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`); torch allocates at multiples of 512.
ALGORITHM_ALIGNMENT = 256


def device_type(arch: str) -> str:
    """The type of a target's device, as torch names it."""
    return "cpu" if arch == HOST else "cuda"


def arch_of(device: "torch.device") -> str:
    """The target that a device runs, as compilers call it: ``sm_90a``; ``host`` for the CPU."""
    import torch

    if device.type == "cpu":
        return HOST
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" + "a" * (major >= 9)


def runs_on(device: "torch.device", arch: str) -> bool:
    """Whether a device runs what is compiled for a target; where there is no GPU, one that is named may be any."""
    import torch

    same = device.type == device_type(arch)
    return same and (device.type == "cpu" or not torch.cuda.is_available() or arch_of(device) == arch)


@dataclass(frozen=True)
class LoadedAlgorithm:
    """An algorithm of the library that was loaded; calling it starts it."""

    start: Launch

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Start it on the current stream; of B only the address counts."""
        self.start(inputs, output)

    @staticmethod
    def takes(inputs: Tensors, output: "torch.Tensor") -> bool:
        """Whether tensors are aligned as the library took them to be."""
        addresses = output.data_ptr()
        for each in inputs:
            addresses |= each.data_ptr()
        return not addresses % ALGORITHM_ALIGNMENT


Loaded = LoadedKernel | LoadedAlgorithm


class Ranged:
    """The kernels of some ranges, loaded on each device that asks for them.

    Parameters
    ----------
    bundle
        Where the kernels are.
    ranges
        Which kernel serves how many rows.

    Attributes
    ----------
    arch
        The target of the kernels.
    """

    def __init__(self, bundle: Bundle, ranges: Sequence[Range]) -> None:
        import torch

        self._bundle, self._ranges, self.arch = bundle, ranges, bundle.arch
        self._lookups: dict[int | None, Lookup[Loaded]] = {}
        self._one_device = device_type(bundle.arch) == "cpu" or torch.cuda.device_count() < 2

    def lookup(self, device: "torch.device") -> Lookup[Loaded]:
        """The kernels of all ranges, loaded on a device."""
        try:
            return self._lookups[device.index]
        except KeyError:
            return self._lookups.setdefault(device.index, load_ranges(self._bundle, self._ranges, device))


class Family(Ranged):
    """The ranges of problems that differ only in m. A call with tensors runs the kernel that was decided.

    Sizes in no range of our kernels, and tensors that they can't take, go to the library.

    Parameters
    ----------
    bundle
        Where the kernels are.
    problem
        One of the problems; its m stands for any.
    ranges
        Which kernel serves which m.
    """

    def __init__(self, bundle: Bundle, problem: GemmProblem, ranges: Sequence[Range]) -> None:
        import torch

        super().__init__(bundle, ranges)
        self.problem = problem  #: its m stands for any
        self._dtype, self.out = (getattr(torch, kind.torch_name) for kind in (problem.element, problem.result))
        self._fp32 = torch.float32
        self._a_along_m = problem.layout[0] == "m"
        self.b_shape = (problem.batch, problem.n, problem.k)
        self.b_strides = strides_of(problem.n, problem.k, problem.layout[1] == "n")
        #: what m must be a multiple of: rows of A that are contiguous along m hold a multiple of `ALIGNMENT` bytes. Our
        #: kernels serve no other m
        self.step = ALIGNMENT // problem.element.bytes if self._a_along_m else 1

    def __call__(
        self, a: "torch.Tensor", b: "torch.Tensor", alpha: "torch.Tensor | None", bias: "torch.Tensor | None"
    ) -> "torch.Tensor":
        """Compute alpha * A @ B.T + bias, activated, of A [batch, m, k], B [batch, n, k], alpha [1] and bias [n]."""
        m, index = a.shape[1], a.device.index
        launch = self.find(a.device, m)
        output = a.new_empty((a.shape[0], m, b.shape[1]), dtype=self.out)
        epilogue = (() if alpha is None else (alpha,)) + (() if bias is None else (bias,))
        if launch is None or not self._takes(a, b, alpha, bias):
            LIBRARY.run_library(self._asked(alpha, bias), (a, b, *epilogue), output)
            return output
        inputs = (
            with_strides(a, strides_of(m, self.problem.k, self._a_along_m)),
            with_strides(b, self.b_strides),
            *epilogue,
        )
        if isinstance(launch, LoadedAlgorithm) and not launch.takes(inputs, output):
            LIBRARY.run_library(self.problem, inputs, output)
            return output
        if self._one_device:
            launch(inputs, output)
        else:
            import torch

            with torch.cuda.device(index):
                launch(inputs, output)
        return output

    def find(self, device: "torch.device", m: int) -> Loaded | None:
        """The kernel that was decided for m rows, on a device; None where the library chooses, or it can't be run."""
        return None if m % self.step else self.lookup(device).find(m)

    def _asked(self, alpha: "torch.Tensor | None", bias: "torch.Tensor | None") -> GemmProblem:
        """The problem, as far as torch must know it, with the epilogue that the call has."""
        same = (alpha is not None, bias is not None) == (self.problem.alpha, self.problem.bias)
        return self.problem if same else replace(self.problem, alpha=alpha is not None, bias=bias is not None)

    def _takes(
        self, a: "torch.Tensor", b: "torch.Tensor", alpha: "torch.Tensor | None", bias: "torch.Tensor | None"
    ) -> bool:
        # A kernel reads what it was promised, whatever it is given: a wrong shape would be read out of bounds.
        return (
            b.shape == self.b_shape
            and a.shape[2] == self.b_shape[2]
            and a.shape[0] == self.b_shape[0]
            and a.dtype is b.dtype is self._dtype
            and (a.transpose(1, 2) if self._a_along_m else a).is_contiguous()
            and (b if self.b_strides[2] == 1 else b.transpose(1, 2)).is_contiguous()
            and not (a.data_ptr() | b.data_ptr()) % ALIGNMENT
            and a.device == b.device
            and self._takes_vector(alpha, self.problem.alpha, 1, self._fp32, a)
            and self._takes_vector(bias, self.problem.bias, self.problem.n, self.out, a)
        )

    @staticmethod
    def _takes_vector(
        vector: "torch.Tensor | None", wanted: bool, size: int, dtype: "torch.dtype", a: "torch.Tensor"
    ) -> bool:
        if vector is None or not wanted:
            return vector is None and not wanted
        same = vector.dtype is dtype and vector.device == a.device
        return same and vector.shape == (size,) and vector.is_contiguous()


def strides_of(rows: int, k: int, along_rows: bool) -> tuple[int, int, int]:
    """The strides of an operand [batch, rows, k] that is contiguous along k, or along its rows."""
    return (rows * k, 1, rows) if along_rows else (rows * k, k, 1)


def with_strides(tensor: "torch.Tensor", strides: tuple[int, int, int]) -> "torch.Tensor":
    """A tensor that has these strides but in dimensions of size 1, with them there too.

    Those may have any: Inductor gives a dimension that it adds a stride of 0, which no kernel was built for.
    """
    return tensor if tensor.stride() == strides else tensor.as_strided(tensor.shape, strides)


_places: list[Path] = []
_bundles: dict[str, Bundle] = {}
_named: dict[str, Named] = {}  # the templates beside tilescout's whose kernels a bundle may hold
_families: dict[str, Family] = {}
_registering = RLock()  # a bundle is known once all of it is: other threads wait for that


def name_of(bundle: Bundle, problem: GemmProblem) -> str:
    """How compiled code names a decision: it holds in every process that loaded the bundle."""
    return f"{bundle.digest}/{family(problem)}"


def family_of(name: str) -> str:
    """The family of the decisions that `name_of` named."""
    return name.partition("/")[2]


def look_in(folder: Path) -> None:
    """Let bundles be found in a folder, where each lies under its digest, when code that names them is loaded."""
    if folder not in _places:
        _places.append(folder)


def find_family(name: str) -> Family:
    """The decisions of this name.

    Raises
    ------
    BundleError
        If the bundle that they are in was not loaded in this process, and is in none of the places of `look_in`, or
        has no such decisions.
    """
    if name not in _families:
        bundle = bundle_of(name)
        if name not in _families:
            raise BundleError(f"bundle {bundle.path} decides nothing of {one_line(family_of(name), 80)}")
    return _families[name]


def bundle_of(name: str) -> Bundle:
    """The bundle in which the decisions of a name are.

    Raises
    ------
    BundleError
        If it was not loaded in this process, and is in none of the places of `look_in`.
    """
    digest = name.partition("/")[0]
    with _registering:
        if digest not in _bundles:
            for place in _places:
                if (place / digest).is_dir():
                    register(read_bundle(place / digest))
        try:
            return _bundles[digest]
        except KeyError:
            raise BundleError(
                f"this program was compiled with the bundle {digest[:12]}…, which is not loaded: call "
                "tilescout.search.export.inductor.load with its directory first"
            ) from None


def register(bundle: Bundle, named: Named = NONE_NAMED) -> None:
    """Make the decisions of a bundle known in this process, and load its kernels on the current device, if it has one.

    Loading before anything runs keeps it out of the capture of CUDA graphs.

    Parameters
    ----------
    bundle
        The bundle.
    named
        See `tilescout.search.export.bundle.read_bundle`.

    Raises
    ------
    DeviceError
        If the current GPU can't run the kernels; nothing is registered then.
    ArtifactError, BundleError
        If a kernel does not load; nothing is registered then.
    """
    import torch

    with _registering:
        if bundle.digest in _bundles:
            _bundles[bundle.digest] = bundle  # the directory may have moved
            return
        device = torch.device("cpu")
        if device_type(bundle.arch) == "cuda" and torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
            _warn_of_other_product(bundle, torch.cuda.get_device_name(device))
        _bundles[bundle.digest], _named[bundle.digest] = bundle, named
        try:
            if device.type == device_type(bundle.arch):
                for kernel in bundle.used:
                    load_kernel(bundle.digest, kernel, device)
        except BaseException:
            del _bundles[bundle.digest], _named[bundle.digest]
            raise
        for name, problem in bundle.problems.items():
            _families[name_of(bundle, problem)] = Family(bundle, problem, bundle.ranges[name])


def _warn_of_other_product(bundle: Bundle, product: str) -> None:
    try:
        same = find_device(product).name == bundle.device
    except DeviceError:
        same = False
    if not same:
        warnings.warn(
            f"bundle {bundle.path} was measured on {one_line(bundle.device, 40)}, this is {product}: its kernels run "
            "here, but what was proven there may not hold",
            stacklevel=4,
        )


@cache
def load_kernel(digest: str, kernel: str, device: "torch.device") -> Loaded | None:
    """A kernel of a bundle; None if it is an algorithm of another version of the library."""
    import torch

    from tilescout.search.build.clusters import max_active_clusters

    bundle = _bundles[digest]
    found = arch_of(device)
    if found != bundle.arch:
        raise DeviceError(f"bundle {bundle.path} is for {bundle.arch}, {device} is {found}: export one for this GPU")
    held = bundle.kernels[kernel]
    if held.library:
        return _load_algorithm(bundle, held, device)
    clusters = 1
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.empty(1, device=device)  # makes the context that the driver is asked in
            clusters = max_active_clusters(held.blocks_per_cluster, device.index)
    try:
        return load_launch(
            bundle.path / held.file, held.sha256, held.function, held.workload, clusters, held.scratch_bytes
        )
    except (OSError, AttributeError, RuntimeError) as error:
        raise BundleError(f"kernel {held.file} of bundle {bundle.path} does not load: {error}") from error


def load_ranges(bundle: Bundle, ranges: Sequence[Range], device: "torch.device") -> Lookup[Loaded]:
    """The kernels of ranges by rows, loaded on a device; those for another type of device are the library's."""
    ours = device.type == device_type(bundle.arch)
    loaded = {each.kernel: load_kernel(bundle.digest, each.kernel, device) for each in ranges if each.kernel and ours}
    return Lookup([(each.low, each.high, loaded.get(each.kernel)) for each in ranges])


def _load_algorithm(bundle: Bundle, held: Kernel, device: "torch.device") -> LoadedAlgorithm | None:
    """An algorithm of the library that is loaded here; None, and a warning, if it is one of another version."""
    import torch

    loader = loader_of(held, _named[bundle.digest])
    version = load_loader(loader).version
    if version != held.library:
        warnings.warn(
            f"bundle {bundle.path} names algorithms of version {one_line(held.library, 40)} of the library, and torch "
            f"brings {version}: they are refused, and the library chooses as without a bundle; search again to have "
            "them",
            stacklevel=5,
        )
        return None
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return LoadedAlgorithm(load_described(bundle.path / held.file, held.sha256, loader, device.index))
    except (OSError, SpaceError, ArtifactError) as error:
        raise BundleError(f"kernel {held.file} of bundle {bundle.path} does not load: {error}") from error
