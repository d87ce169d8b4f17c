"""The base of the templates of other projects' matrix products: the package that they need, and what they refuse."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tilescout.spaces.errors import ProblemError, SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.layout import steps
from tilescout.spaces.gemm_sm90.rules import check_alignment
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.problems import P
from tilescout.spaces.templates import KernelTemplate


@dataclass(frozen=True)
class Library:
    """A package of kernels, which an extra of ours installs.

    Attributes
    ----------
    distribution
        Its name in package indexes.
    extra
        Our extra.
    """

    distribution: str
    extra: str

    def version(self, space: str) -> str:
        """The installed version.

        Raises
        ------
        SpaceError
            If it is not installed: `space` then has no kernels.
        """
        try:
            return version(self.distribution)
        except PackageNotFoundError:
            raise SpaceError(
                f"{space} needs the package {self.distribution}: pip install 'tilescout[{self.extra}]'"
            ) from None


class LibraryTemplate(KernelTemplate[P]):
    """Kernels of another project, with the rules that the project states.

    There are no rules against configurations that are merely slow: all that the project itself would run is in the
    space.
    """

    package = "tilescout.spaces.libraries"
    library: Library

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return math.prod(int(configuration.get(name, 1)) for name in ("cluster_m", "cluster_n"))

    def _configuration(self, **values: Value) -> Configuration:
        return Configuration(tuple((knob.name, values[knob.name]) for knob in self.knobs))

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources` and the version of the library.

        Raises
        ------
        SpaceError
            If the library is not installed.
        """
        found = f"{super().source_hash} {self.library.distribution} {self.library.version(self.name)}"
        return hashlib.sha256(found.encode()).hexdigest()


class LibraryGemmTemplate(LibraryTemplate[GemmProblem]):
    """Plain matrix products."""

    workload = "tilescout.spaces.gemm:Gemm"

    def check(self, problem: GemmProblem) -> None:
        self.library.version(self.name)
        if problem.epilogue:
            raise ProblemError(f"{self.name}: nothing is fused to the product, not {problem.epilogue}; gemm_sm90 can")
        check_alignment(self.name, problem, steps(problem))
