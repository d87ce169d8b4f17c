"""The plot of a dispatcher: times of its kernels over m, and the regret."""

from pathlib import Path

from tilescout.search.dispatch.building import regret_over_m
from tilescout.search.dispatch.bundling import kernels_of
from tilescout.search.dispatch.dispatcher import Dispatcher
from tilescout.spaces.errors import StoreError
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.texts import number_of


def has_regret(dispatcher: Dispatcher) -> bool:
    """Whether there is a regret to draw: something was measured, and a kernel serves."""
    return bool(dispatcher.points and dispatcher.kernels)


def draw(dispatcher: Dispatcher, path: Path) -> None:
    """Draw the kernels' times over the library's at the measured m, and the regret at every m.

    Raises
    ------
    StoreError
        If nothing was measured, as where a model chooses, or no kernel serves: there is no regret to draw.
    """
    if not has_regret(dispatcher):
        raise StoreError("nothing of the dispatcher was measured, or no kernel serves: there is no regret to draw")
    from tilescout.search.tracking.plots import figure_type, to_png

    figure = figure_type()(figsize=(9, 7), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for number in range(len(dispatcher.kernels)):
        shown = [(point.m, point.ratios[number].value) for point in dispatcher.points if number in point.ratios]
        if shown:
            above.plot(*zip(*shown, strict=True), ".", markersize=4, label=f"kernel {number + 1}")
    sizes = [point.m for point in dispatcher.points]
    shares = [dispatcher.over_library(point) for point in dispatcher.points]
    known = [(m, share) for m, share in zip(sizes, shares, strict=True) if share is not None]
    above.plot(*zip(*known, strict=True), "k-", lw=0.8, label="dispatched")
    if dispatcher.over_library_best:
        above.plot(*zip(*dispatcher.over_library_best.items(), strict=True), "kx", label="over the library's best")
    above.axhline(1.0, color="grey", lw=0.8)
    above.set_ylabel("time over the library's")
    above.legend(ncols=3, fontsize="small")
    every, estimate, bound = regret_over_m(dispatcher, kernels_of(dispatcher))
    below.plot(every, 100 * bound, lw=0.8, label="at most, if time does not fall as m grows")
    below.plot(every, 100 * estimate, lw=0.8, label="estimate")
    below.plot(sizes, [0.0] * len(sizes), "|", color="grey", label="measured m")
    below.set_xscale("log", base=2)
    below.set_yscale("symlog", linthresh=1)
    below.set_xlabel("m")
    below.set_ylabel("time over the best of these kernels and the library, % more")
    below.legend(fontsize="small")
    product = str(dispatcher.problem).removeprefix("1x")
    ranges = number_of(len(dispatcher.stretches), "range")
    figure.suptitle(f"{dispatcher.space} on {dispatcher.device}, {product}: {ranges} of m")
    write_whole(path, to_png(figure))
