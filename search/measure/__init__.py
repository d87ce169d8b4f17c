"""Measurements and how they are made: the protocol, the measuring process, verification, and the race.

Everything public is named here; a module is imported when one of its names is first used.
`docs/explanation/measuring-protocol.md` explains the protocol.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.measure.measurement import Clocks, Measurement, Status, Timing
    from tilescout.search.measure.process import MeasuringProcess
    from tilescout.search.measure.protocol import Objective, ProtocolOptions
    from tilescout.search.measure.provenance import Dataset, Provenance
    from tilescout.search.measure.race import Estimate, Race, RaceOptions, race_fastest, run_race

__all__ = [
    "Clocks",
    "Dataset",
    "Estimate",
    "Measurement",
    "MeasuringProcess",
    "Objective",
    "ProtocolOptions",
    "Provenance",
    "Race",
    "RaceOptions",
    "Status",
    "Timing",
    "race_fastest",
    "run_race",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Clocks": "measurement",
        "Measurement": "measurement",
        "Status": "measurement",
        "Timing": "measurement",
        "MeasuringProcess": "process",
        "Objective": "protocol",
        "ProtocolOptions": "protocol",
        "Dataset": "provenance",
        "Provenance": "provenance",
        "Estimate": "race",
        "Race": "race",
        "RaceOptions": "race",
        "race_fastest": "race",
        "run_race": "race",
    },
)
