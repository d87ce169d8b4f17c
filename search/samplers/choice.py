"""The sampler of a search for which nobody names one."""

from dataclasses import dataclass

from tilescout.costmodel.persistence import shipped_model
from tilescout.costmodel.relatives import model_for, relative_model
from tilescout.spaces.description import Describes


@dataclass(frozen=True)
class Choice:
    """A sampler that was chosen.

    Attributes
    ----------
    sampler
        Its name.
    reason
        Why it was chosen, in a line.
    """

    sampler: str
    reason: str


def choose_sampler(space: Describes | str, device: str, *, with_model: bool = False) -> Choice:
    """The sampler that needs the fewest measurements: `guided` where there is a cost model, else `guided-cold`.

    Both lead the comparisons of their kind: on recorded tables of the GEMM, and on spaces of other people's kernels
    that no model knows (`experiments/results/strategies-on-gemm.md`, `strategies-on-other-kernels.md`). A model of a
    sibling of the device, or of a relative of the kernel, is one, too (`tilescout.costmodel.relatives`).

    Parameters
    ----------
    space
        The template of the space that is searched, or its name.
    device
        The name of the device.
    with_model
        Whether a cost model was named.
    """
    if with_model:
        return Choice("guided", "a cost model was named")
    name = space if isinstance(space, str) else space.name
    if shipped_model(name, device) is not None:
        return Choice("guided", f"a cost model of {name} on {device} is shipped")
    sibling = model_for(name, device)
    if sibling is not None:
        return Choice("guided", f"no cost model of {name} on {device} is shipped, but one of a sibling: {sibling.stem}")
    relative = relative_model(space, device)
    if relative is not None:
        return Choice(
            "guided", f"no cost model of {name} on {device} is shipped, but one of a relative: {relative.stem}"
        )
    return Choice("guided-cold", f"no cost model of {name} on {device} is shipped")
