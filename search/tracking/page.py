"""A study as one HTML page that loads nothing else, so that it can be mailed."""

from importlib.resources import files

from tilescout.search.measure.measurement import Status
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import fields
from tilescout.search.tracking.description import HINDSIGHT, interval, not_timed, source, verdict
from tilescout.search.tracking.plots import draw, to_svg
from tilescout.search.tracking.views import differing, failures, importance, others, over_library, trial_rows
from tilescout.spaces.texts import number_of, printable

GENERATOR = b'<meta name="generator" content="tilescout">'
"""The mark of such a page, within its first kilobyte."""

_LEFT_OUT = frozenset({"space_index", "library_us", "pairs", "time_over_library", "verify_seconds", "pilot_seconds",
                       "timing_seconds", "race_seconds", "time_over_library_q25", "time_over_library_q75"})  # fmt: skip


def to_html(result: StudyResult) -> str:
    """The page: the verdict, the best beside the default, plots, trials, failures and the environment.

    It loads nothing, and everything in it that came from the study is escaped; of its characters that do not print,
    only ends of lines are as they were. Call it from the main thread.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    info, best = result.info, result.best
    plots = {name: Markup(to_svg(name, figure)) for name, figure in draw(result, importance(result)).items()}
    rows = [{name: value for name, value in row.items() if name not in _LEFT_OUT} for row in trial_rows(result)]
    engine = Environment(autoescape=True, finalize=_printable)
    engine.filters["cell"] = _cell
    template = engine.from_string(files("tilescout.search.tracking").joinpath("page.html").read_text("utf-8"))
    return template.render(
        info=info,
        result=result,
        source=source(info),
        found=best is not None and best.measurement.ok,
        verdict=verdict(result),
        hindsight=HINDSIGHT,
        times=times(result),
        cost=cost(result),
        not_timed=not_timed(result),
        knobs=differing(best.configuration if best is not None else None, info.default),
        plots=plots,
        failures=failures(result),
        rows=rows,
        numeric={name for name in (rows[0] if rows else ()) if all(_is_number(row[name]) for row in rows)},
        answer=best.number if best is not None else None,
        environment=_environment(result),
    )


def times(result: StudyResult) -> list[dict[str, str]]:
    """The times of the best, the default, the library and the roofline, as rows of text."""
    info = result.info
    rows = [_time(name, trial, result) for name, trial in (("best", result.best), ("default", result.default)) if trial]
    rows.append(
        {
            "name": info.library,
            "time": f"{info.library_us:.2f}",
            "rate": fields.rate(info.problem, info.library_us),
            "library": "1.000",
        }
    )
    for name, ratio in others(result):
        time_us = ratio.value * info.library_us
        rate, speed = fields.rate(info.problem, time_us), interval(ratio.inverse())
        rows.append({"name": name, "time": f"{time_us:.2f}", "rate": rate, "library": speed})
    if (roofline := result.roofline) is not None:
        rows.append(
            {
                "name": "roofline",
                "time": f"{roofline.time_us:.2f}",
                "rate": fields.rate(info.problem, roofline.time_us),
                "library": f"{info.library_us / roofline.time_us:.3f}",
            }
        )
    return rows


def _time(name: str, trial: TrialRecord, result: StudyResult) -> dict[str, str]:
    title, timing = f"{name}, trial {trial.number}", trial.measurement.timing
    if timing is None:
        return {"name": title, "time": str(trial.measurement.status), "rate": "", "library": ""}
    low, high = timing.ratio_low * timing.library_us, timing.ratio_high * timing.library_us
    return {
        "name": title,
        "time": f"{timing.time_us:.2f} [{low:.2f}, {high:.2f}]",
        "rate": fields.rate(result.info.problem, timing.time_us),
        "library": interval(over_library(timing)),
    }


def cost(result: StudyResult) -> str:
    """The cost of a search, in a sentence."""
    failed = sum(trial.measurement.failed for trial in result.trials)
    pruned = sum(trial.measurement.status is Status.PRUNED for trial in result.trials)
    among = f" of {number_of(result.info.size, 'configuration')}" if result.info.size else ""
    return (
        f"{number_of(len(result.trials), 'trial')}{among}, {pruned} pruned, {failed} failed; "
        f"{result.gpu_seconds:.1f} s of GPU, {result.compile_seconds:.1f} s of compiling, "
        f"{result.seconds:.1f} s in the last run of the search."
    )


def _environment(result: StudyResult) -> dict[str, str]:
    info, table = result.info, result.info.provenance.table
    known = {
        "study": info.name,
        "space": info.space,
        "hash of the space's source": info.space_hash,
        "problem": str(info.problem),
        "device": info.device,
        "times from": info.provenance.description,
        "table": f"{table.name}, {number_of(table.rows, 'row')}, SHA-256 {table.sha256}" if table is not None else "",
        "cost model": _model_of(info),
        **info.provenance.versions,
    }
    return {name: value for name, value in known.items() if value}


def _model_of(info: StudyInfo) -> str:
    if info.model or (guide := info.guide) is None:
        return info.model
    return f"{guide['name']}, SHA-256 {info.model_sha256 or 'unknown'}"


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float)


def _printable(value: object) -> object:
    """The value as a template shows it: a page may be read in a terminal, too."""
    from markupsafe import Markup

    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
