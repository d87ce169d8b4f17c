"""The rows of the study ``backends``: their names, means over problems, files of earlier runs, and printed tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.research.records import Record
from tilescout.search.measure.protocol import VERSION
from tilescout.spaces.errors import StoreError, one_line

OURS, DEFAULT, OF_LIST, CUBLASLT = "ours", "ours, default", "cuBLASLt, best of its list", "cuBLASLt, tuned"
EXPORTED, LIBRARY, OF_ALL = "exported", "torch.mm", "cuBLASLt, best of all"
FAST = "torch.mm, fast sums"
LIBRARIES = (LIBRARY, OF_LIST, CUBLASLT, OF_ALL)
LEFT = "what the search of cuBLASLt left"
"""The key of how much faster the fastest of cuBLASLt's kernels is than the answer of its search, by their own race."""
COSTS = ("seconds", "compiling", "benchmarking")
"""The costs of finding a kernel: seconds from asking to knowing, of one core that compiled, and of the GPU."""


def summarised(found: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, dict[str, Any]]:
    """The figures of each row over the problems where it works: speeds, those of ours over it, what finding it took."""
    told = {}
    for who in dict.fromkeys(who for one in found.values() for who in one["rows"]):
        here = [one["rows"] for one in found.values() if "speed" in one["rows"].get(who, {})]
        if not here:
            continue
        speeds = [rows[who]["speed"]["value"] for rows in here]
        ours = [rows[OURS]["speed"]["value"] / rows[who]["speed"]["value"] for rows in here if "speed" in rows[OURS]]
        told[who] = {
            "problems": len(here),
            "speed": list(geometric_mean_interval(speeds, seed)),
            "least": min(speeds),
            "clearly below 1": sum(rows[who]["speed"]["high"] < 1 for rows in here),
            "ours over it": list(geometric_mean_interval(ours, seed)) if ours else None,
            "least of ours over it": min(ours, default=None),
            **{f"median {name}": _median([_cost(rows[who], name) for rows in here]) for name in COSTS},
        }
    return told


def over_library(found: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """The speeds of ours and of what is exported over the fastest of cuBLASLt's kernels, whoever found that one."""
    told: dict[str, Any] = {}
    for who in (OURS, EXPORTED, CUBLASLT):
        over = []
        for rows in (one["rows"] for one in found.values()):
            theirs = [rows[each]["speed"]["value"] for each in LIBRARIES if "speed" in rows.get(each, {})]
            if "speed" in rows.get(who, {}):
                over.append(rows[who]["speed"]["value"] / max(theirs))
        if over:
            told[who] = {"speed": list(geometric_mean_interval(over, seed)), "least": min(over), "problems": len(over)}
            told[who]["within 1 %"] = sum(each >= 1 / 1.01 for each in over)
    if left := [one[LEFT]["over the search's"] for one in found.values() if LEFT in one]:
        missed = {"more than 1 %": "value", "more than 1 % beyond the interval": "low"}
        told[LEFT] = {"problems": len(left), "most": max(each["value"] for each in left) - 1} | {
            name: sum(each[end] > 1.01 for each in left) for name, end in missed.items()
        }
    return told


def fastest_of_library(rows: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of the fastest of cuBLASLt's kernels on a problem whose configuration is known; None if there is none."""
    theirs = [rows[who] for who in LIBRARIES if "speed" in rows.get(who, {}) and "configuration" in rows[who]]
    return max(theirs, key=lambda row: float(row["speed"]["value"]), default=None)


def _cost(row: Mapping[str, Any], name: str) -> float | None:
    """A cost of finding a kernel; of compiling, TorchInductor says what it took ahead."""
    found = row.get(name, row.get("precompiling") if name == "compiling" else None)
    return None if found is None else float(found)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def print_speeds(
    console: Console, found: Mapping[str, Mapping[str, Any]], overs: Mapping[str, Mapping[str, Any]]
) -> None:
    """Print the speeds and costs of all problems, by kind what is over the library, and why rows are missing."""
    grid = Grid(
        title="speed over torch.mm by the race; seconds from asking to knowing (of one core compiling, of benchmarking)"
    )
    names = list(dict.fromkeys(who for one in found.values() for who in one["rows"]))
    for heading in ("", *names):
        grid.add_column(heading, overflow="fold")
    for text, one in found.items():
        cells = []
        for row in (one["rows"].get(who, {}) for who in names):
            if "speed" not in row:
                cells.append("-")
                continue
            spent = (_cost(row, name) for name in COSTS[1:])
            parts = ", ".join("?" if part is None else f"{part:.1f}" for part in spent)
            cells.append(f"{row['speed']['value']:.3f}\n{row['seconds']:.1f} s ({parts})")
        grid.add_row(text, *cells)
    console.print(grid)
    for kind, over in overs.items():
        for who, told in over.items():
            if who == LEFT:
                counts = ", ".join(f"{name} {count:g}" for name, count in told.items() if name != "most")
                console.print(f"{kind}: {who}: {told['most']:.1%} at most; {counts}")
                continue
            near = f"within 1 % or ahead on {told['within 1 %']} of {told['problems']}"
            mean, least = told["speed"][0], told["least"]
            console.print(f"{kind}: {who} at {mean:.3f} of cuBLASLt's fastest, at the least {least:.3f}, {near}")
    errors: dict[tuple[str, str], list[str]] = {}
    for text, one in found.items():
        for who, row in one["rows"].items():
            if "error" in row:
                errors.setdefault((who, row["error"]), []).append(text)
    for (who, error), texts in errors.items():
        told_of = texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"
        console.print(f"{who}: {told_of}: {error}", highlight=False, soft_wrap=True, markup=False)


def print_means(console: Console, means: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Print a table of each kind of problem: the speed of each row in the mean, and the median of what it cost."""
    for kind, rows in means.items():
        grid = Grid(title=f"{kind}: speed over torch.mm, geometric mean [95 % over such problems]; medians of seconds")
        for heading in ("", "problems", "speed", "least", "clearly below 1", "ours over it", *COSTS):
            grid.add_column(heading)
        for who, told in rows.items():
            mean, low, high = told["speed"]
            ours = told["ours over it"]
            costs = (told[f"median {name}"] for name in COSTS)
            grid.add_row(
                *(who, str(told["problems"]), f"{mean:.3f} [{low:.3f}, {high:.3f}]", f"{told['least']:.3f}"),
                *(str(told["clearly below 1"]), "-" if ours is None else f"{ours[0]:.3f}"),
                *("-" if cost is None else f"{cost:.1f}" for cost in costs),
            )
        console.print(grid)


def known_before(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The runs of earlier files, and their problems, each with the number of its run; the first of equal ones counts.

    Raises
    ------
    StoreError
        If a file can't be read, or is of another study.
    """
    runs: list[dict[str, Any]] = []
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        record = Record.read(path)
        try:
            if (protocol := record.result["protocol"]) != VERSION:
                raise StoreError(f"{path} was measured by {protocol}, asked for is {VERSION}: run its problems again")
            earlier = record.result.get("runs") or [{"about": record.about}]
            for name, one in record.result["problems"].items():
                found.setdefault(name, one | {"run": len(runs) + one.get("run", 0)})
        except (AttributeError, KeyError, TypeError) as error:
            raise StoreError(f"{path} is no file of this study: {one_line(error)}") from error
        runs += earlier
    return runs, found
