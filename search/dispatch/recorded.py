"""Times of kernels over m that were recorded before, in the place of a GPU."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilescout.search.dispatch.kernels import MOST_CANDIDATES, Kernels
from tilescout.search.dispatch.points import Point, check_numbers, check_order, check_points
from tilescout.spaces.checking import check_types
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, StoreError, TilescoutError, fault_of
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inputs import parse_json, read_unpacked
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate

_LARGEST = 1 << 26  # bytes of a file, and of what is packed in it; a size with 32 kernels has 3 kB


@dataclass(frozen=True, eq=False)
class Recorded:
    """A source of what was measured before; it knows no other m.

    Attributes
    ----------
    kernels
        The kernels that were timed.
    points
        Their times, by m.
    """

    kernels: Kernels
    points: Mapping[int, Point]

    @property
    def sizes(self) -> Set[int]:
        """The m that were recorded."""
        return self.points.keys()

    @property
    def named(self) -> None:
        """Nothing: the library can't be asked."""
        return None

    def glances(self, asked: Mapping[int, Sequence[int]]) -> list[Point]:
        """Nothing: what is recorded was measured."""
        return []

    def check(self, m: int, numbers: Sequence[int]) -> tuple[Point, Point] | None:
        """Nothing, as `glances`."""
        return None

    def at(self, m: int, numbers: Sequence[int], race: bool = False) -> Point:
        """The recorded times of some kernels at a recorded m, by the same numbers; a race was recorded or not."""
        held = self.points[m]
        ratios = {number: held.ratios[number] for number in numbers if number in held.ratios}
        return replace(
            held,
            ratios=ratios,
            raced=None if held.raced is None else tuple(number for number in held.raced if number in ratios),
            slower={number: held.slower[number] for number in numbers if number in held.slower},
            failed={number: held.failed[number] for number in numbers if number in held.failed},
        )


def read_sweep(path: Path, problem: GemmProblem, template: KernelTemplate) -> tuple[Recorded, str]:
    """The recorded times of a product, of a file of sweeps, and the GPU that they were measured on.

    Parameters
    ----------
    path
        The file: JSON, or that packed by gzip.
    problem
        The product; its m is 1.
    template
        The template of the kernels.

    Raises
    ------
    StoreError
        If it has no times of the product, or is something else.
    """
    try:
        products, device = _parsed(path)
        if str(problem) not in products:
            held = ", ".join(name.removeprefix("1x") for name in products) or "none"
            raise StoreError(f"{path} has no times of {str(problem).removeprefix('1x')}: it has {held}")
        found = products[str(problem)]
        points = [Point.from_dict(each) for each in found["points"]]
        if not points or not 0 < len(found["kernels"]) <= MOST_CANDIDATES:
            raise ValueError(f"it has no sizes, no kernels, or more than {MOST_CANDIDATES}")
        kernels = Kernels.of(
            template, find_device(device), problem, tuple(Configuration.of(each) for each in found["kernels"])
        )
        for point in points:
            check_types(point)
        check_numbers(points, len(kernels), max(point.m for point in points))
        check_order(sorted(points, key=lambda point: point.m))
        check_points(points, problem, kernels.device)
        kernels.check_knobs()
    except OSError as error:
        raise StoreError(f"can't read {path}: {error.strerror}") from error
    except StoreError:
        raise
    except (*MALFORMED, TilescoutError) as error:
        raise StoreError(f"{path} is no record of a sweep: {fault_of(error, 100)}") from error
    return Recorded(kernels, {point.m: point for point in points}), device


def _parsed(path: Path) -> tuple[dict[str, Mapping[str, Any]], str]:
    """The products by their problems, and the name of the device."""
    result = parse_json(read_unpacked(path, _LARGEST))["result"]
    return {each["problem"]: each for each in result["products"].values()}, str(result["device"])
