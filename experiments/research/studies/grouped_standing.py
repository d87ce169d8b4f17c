"""Where our grouped products stand beside their peers: a summary of what ``grouped peers`` recorded.

    python -m tilescout.experiments.research grouped-standing peers.json more-peers.json --out standing.json

The peers are what a user of others gets: `torch._grouped_mm`, Quack's kernel as its own autotuner chooses it and by
default, cuBLAS expert by expert, and TorchInductor's Triton kernel where it was timed. Quack's fastest of our list,
which nobody but a search of its space finds, stands beside them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.research.grouped_tuners import QUACK, TRITON
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study

SPACES = ("grouped_gemm_sm90", "grouped_streamk_sm90")  # ours: a record has one or more
LISTED = "quack_varlen best"
PEERS = (QUACK, TRITON, "quack_varlen default", "cuBLAS by expert")
SEED = 0  # of the intervals


def standing(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of each problem, our speed over the best peer's, and over the best of all; their means, and 95 % intervals.

    Problems that Quack's own autotuner was not asked for are left out.
    """
    found: dict[str, Any] = {}
    for text, record in problems.items():
        speeds = {name: each["value"] for name, each in record["speedup_over_library"].items()}
        if QUACK not in speeds:
            continue
        ours = next(space for space in SPACES if f"{space} best" in speeds)
        mine, default = speeds[f"{ours} best"], speeds[f"{ours} default"]
        peers = {name: speeds[name] for name in PEERS if name in speeds} | {"torch._grouped_mm": 1.0}
        best = max(peers, key=lambda name: peers[name])
        found[text] = {
            "ours": mine,
            "default": default,
            "listed": speeds[LISTED],
            **{name: speeds[name] for name in PEERS if name in speeds},
            "best_peer": best,
            "over_peers": mine / peers[best],
            "default_over_peers": default / peers[best],
            "over_all": mine / max(peers[best], speeds[LISTED]),
        }
    names = ("ours", "default", "listed", QUACK, "over_peers", "default_over_peers", "over_all")
    over = {name: geometric_mean_interval([each[name] for each in found.values()], SEED) for name in names}
    return {
        "problems": found,
        "means": {name: mean for name, (mean, *_) in over.items()},
        "intervals": {name: ends for name, (_, *ends) in over.items()},
        "slower": sum(each["ours"] < 1 for each in found.values()),
        "timed": {name: sum(name in each for each in found.values()) for name in PEERS},
    }


def read(paths: Sequence[Path]) -> dict[str, Any]:
    """The problems of several records."""
    found: dict[str, Any] = {}
    for path in paths:
        found |= Record.read(path).result["problems"]
    return found


@study("what `grouped peers` recorded")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(run: Run, paths: tuple[Path, ...]) -> None:
    """Summarise PATHS."""
    found = standing(read(paths))
    run.keep(found)
    for text, each in found["problems"].items():
        shown = "  ".join(f"{name} {each[name]:.3f}" for name in ("default", "listed", *PEERS) if name in each)
        print(f"{text:<40} ours {each['ours']:.3f}  {shown}: {each['over_peers']:.3f} of {each['best_peer']}")
    print({name: round(value, 4) for name, value in found["means"].items()}, "slower than torch:", found["slower"])
