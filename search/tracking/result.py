"""The result of a search as people see it: in a notebook, as a data frame, as plots."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tilescout.search.studies.folders import STORE, studies
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.errors import NoResultError, StoreError
from tilescout.spaces.knobs import Value
from tilescout.spaces.templates import NONE_NAMED, Named
from tilescout.spaces.trust import named_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_HTML = """\
<p><b>{{ result.info.space }} {{ result.info.problem }}</b> on {{ result.info.device }}, searched by
{{ result.info.sampler }}, seed {{ result.info.seed }}: {{ verdict }}</p>
<table>
<tr><th></th><th>{{ result.info.provenance.unit }}</th><th>{{ result.info.problem.rate.unit.symbol }}</th>
<th>over the library</th></tr>
{% for row in times %}
<tr><td>{{ row.name }}</td><td>{{ row.time }}</td><td>{{ row.rate }}</td><td>{{ row.library }}</td></tr>
{% endfor %}
</table>
{% if best %}<p>best: <code>{{ best.configuration }}</code></p>{% endif %}
<p>{{ cost }} {{ source }}</p>
{% if picture %}<img alt="{{ caption }}" src="data:image/png;base64,{{ picture }}">{% endif %}
"""


class TuneResult(StudyResult):
    """The result of a search: what a `StudyResult` holds, and ways to look at it. A notebook shows it as a table."""

    @classmethod
    def of(cls, result: StudyResult) -> Self:
        """A result with ways to look at it."""
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)})

    @property
    def best_trial(self) -> TrialRecord:
        """The trial of the best configuration, as `best`.

        Raises
        ------
        NoResultError
            If no configuration had a correct result.
        """
        best = self.best
        if best is None or not best.measurement.ok:
            raise NoResultError(f"no trial of {self.info.name} worked: `trials` has their errors")
        return best

    @property
    def best_params(self) -> dict[str, Value]:
        """The values of the knobs in the best configuration; raises as `best_trial` does."""
        return dict(self.best_trial.configuration)

    @property
    def best_value(self) -> float:
        """The time of the best configuration in µs, or what stands for it; raises as `best_trial` does."""
        return self.best_trial.measurement.time_us

    def trials_dataframe(self) -> "DataFrame":
        """The trials as a pandas data frame with a row each and their numbers as index.

        Columns are the status, times in µs, speed-ups, the value of every knob, the error and the costs in seconds.
        """
        import pandas as pd

        from tilescout.search.tracking.views import trial_rows

        frame = pd.DataFrame(trial_rows(self))
        return frame.set_index("trial") if len(frame) else frame

    def importances(self) -> dict[str, float]:
        """The share of the variance of the log times that each knob explains alone (fANOVA), the largest first.

        Empty if fewer than 8 trials were timed. A search does not try configurations at random: this describes its
        trials.
        """
        from tilescout.search.tracking.views import importance

        found = importance(self)
        return dict(found.variance) if found is not None else {}

    def plot(self, name: str = "convergence") -> "Figure":
        """A plot of the search, as a matplotlib figure that a notebook shows.

        Parameters
        ----------
        name
            ``convergence``, ``importance``, ``heat_map``, ``predicted`` (with a cost model only) or ``gpu_seconds``.

        Raises
        ------
        NoResultError
            If there is no such plot of this study.
        """
        from tilescout.search.tracking.plots import NEEDED, draw
        from tilescout.search.tracking.views import importance

        drawn = draw(self, importance(self)) if self.trials else {}
        if name not in drawn:
            why = f", which needs {needed}" if (needed := NEEDED.get(name)) else ""
            raise NoResultError(f"there is no plot {name!r} of this study{why}; there are {', '.join(drawn) or 'none'}")
        return drawn[name]

    def _repr_html_(self) -> str:
        """The result in a notebook. Everything in it that came from the study is escaped."""
        from base64 import b64encode

        from jinja2 import Environment

        from tilescout.search.tracking.description import source, verdict
        from tilescout.search.tracking.page import cost, times
        from tilescout.search.tracking.plots import CAPTIONS, convergence, to_png

        values: dict[str, Any] = {
            "result": self,
            "best": self.best,
            "times": times(self),
            "verdict": verdict(self),
            "cost": cost(self),
            "source": source(self.info),
            "caption": CAPTIONS["convergence"],
            "picture": b64encode(to_png(convergence(self))).decode() if self.trials else "",
        }
        return Environment(autoescape=True).from_string(_HTML).render(values)


def load_study(
    name: str, *, store: Path | str = STORE, storage: Path | str | None = None, named: Named = NONE_NAMED
) -> TuneResult:
    """A study that was searched before, as far as it has come.

    Parameters
    ----------
    name
        The study's name, which is its result's ``info.name``, or the path of a journal.
    store, storage
        Where it is kept; see `tilescout.search.tune`.
    named
        Templates of your own that it may be of, by name.

    Raises
    ------
    StoreError
        If there is no such study, or it is damaged.
    """
    check_kinds(StoreError, name=(name, str), named=(named, Mapping))
    return TuneResult.of(read_study(name, studies(named_folder(store), storage), named))
