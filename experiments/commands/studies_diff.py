"""Two studies side by side."""

from tilescout.search.studies.records import StudyResult


def differences(first: StudyResult, second: StudyResult) -> dict[str, tuple[object, object]]:
    """The figures of two studies, and what differs of the rest: what was searched, and the knobs of the best."""
    sides = [_figures(each) | _about(each) | _best_knobs(each) for each in (first, second)]
    shown = {name: (sides[0].get(name, ""), sides[1].get(name, "")) for name in dict.fromkeys([*sides[0], *sides[1]])}
    always = _figures(first).keys()
    return {name: pair for name, pair in shown.items() if name in always or pair[0] != pair[1]}


def incomparable(first: StudyResult, second: StudyResult) -> list[str]:
    """In what two studies differ that makes their times no comparison of searches."""
    sides = [_about(each) for each in (first, second)]
    alike = ("space", "kernel source", "problem", "device", "measured by", "objective", "protocol")
    return [name for name in alike if sides[0][name] != sides[1][name]]


def _about(result: StudyResult) -> dict[str, object]:
    info = result.info
    return {
        "space": info.space,
        "kernel source": info.space_hash[:12],
        "problem": str(info.problem),
        "device": info.device,
        "library": info.library,
        "measured by": info.provenance.kind,
        "objective": str(info.provenance.objective),
        "protocol": info.provenance.versions.get("protocol", ""),
        "sampler": info.sampler,
        "seed": info.seed,
        "cost model": info.model_sha256[:12] or info.model_object,
    }


def _figures(result: StudyResult) -> dict[str, object]:
    timing = result.best.measurement.timing if result.best is not None else None
    first_best = result.best.number if result.best is not None else ""
    over_best = result.over_library_best
    return {
        f"best {result.info.provenance.unit}": f"{timing.time_us:.2f}" if timing is not None else "none",
        "vs library": f"{1 / timing.ratio:.3f}" if timing is not None else "",
        "vs library's best": f"{over_best.value:.3f}" if over_best is not None else "",
        **{f"vs {name}": f"{over.value:.3f}" for name, over in result.over_peers.items()},
        "found by trial": first_best,
        "trials": len(result.trials),
        "failed": sum(trial.measurement.failed for trial in result.trials),
        "raced": "yes" if result.race is not None else "no",
        "GPU s": f"{result.gpu_seconds:.2f}",
        "compiling s": f"{result.compile_seconds:.1f}",
    }


def _best_knobs(result: StudyResult) -> dict[str, object]:
    best = result.best
    return {f"best: {name}": value for name, value in best.configuration.items()} if best is not None else {}
