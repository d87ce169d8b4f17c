"""The card of a table whose rows a test has made up."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from tilescout.search.tables.card import Baseline, TableCard
from tilescout.spaces.devices import Device
from tilescout.spaces.templates import KernelTemplate


def card_of(
    template: KernelTemplate, device: Device, baselines: Mapping[Any, Baseline], library: str = "torch.mm"
) -> TableCard:
    """The card of rows of a template on a device."""
    return TableCard(
        space=template.name,
        source_hash=template.source_hash,
        knobs={knob.name: knob.values for knob in template.knobs},
        device=device.name,
        product=device.product,
        driver="580.0",
        versions={"torch": "2.11.0", "cuda": "13.0", "nvidia-cutlass-dsl": "4.8.1"},
        protocol="invented-1",
        protocol_text="Drawn from a seeded generator.",
        recorded=date(2026, 11, 21),
        library=library,
        baselines=dict(baselines),
    )
