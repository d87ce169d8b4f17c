"""MLflow: live logging of a search, reports of what was logged, and the UI on it.

Everything public is named here; a module is imported when one of its names is first used, and MLflow itself only when
something is logged or read::

    from tilescout.search.tracking import MlflowTracker, default_store, log_experiment
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.tracking.description import as_code, as_text
    from tilescout.search.tracking.experiment import Logged, delete_study, log_experiment, log_run, markdown_table
    from tilescout.search.tracking.fields import PARENT_TAG, STUDY_TAG, TRIAL_TAG, UI_MODE
    from tilescout.search.tracking.models import log_model
    from tilescout.search.tracking.page import to_html
    from tilescout.search.tracking.server import FRONT_PAGE, HOST, PORT, address, serve
    from tilescout.search.tracking.standing.logger import standing_logger
    from tilescout.search.tracking.store import (
        Opening,
        artifact_folder,
        check_installed,
        default_store,
        find_experiment,
        open_client,
        opened_experiment,
        quiet_mlflow,
        translated,
    )
    from tilescout.search.tracking.suite import SuiteInfo, SuiteRun, suite_metrics
    from tilescout.search.tracking.tracker import MlflowTracker
    from tilescout.search.tracking.writer import TrackingError

__all__ = [
    "FRONT_PAGE",
    "HOST",
    "PARENT_TAG",
    "PORT",
    "STUDY_TAG",
    "TRIAL_TAG",
    "UI_MODE",
    "Logged",
    "MlflowTracker",
    "Opening",
    "SuiteInfo",
    "SuiteRun",
    "TrackingError",
    "address",
    "artifact_folder",
    "as_code",
    "as_text",
    "check_installed",
    "default_store",
    "delete_study",
    "find_experiment",
    "log_experiment",
    "log_model",
    "log_run",
    "markdown_table",
    "open_client",
    "opened_experiment",
    "quiet_mlflow",
    "serve",
    "standing_logger",
    "suite_metrics",
    "to_html",
    "translated",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        **dict.fromkeys(("Logged", "delete_study", "log_run", "markdown_table"), "experiment"),
        "as_code": "description",
        "as_text": "description",
        "log_experiment": "experiment",
        "PARENT_TAG": "fields",
        "STUDY_TAG": "fields",
        "TRIAL_TAG": "fields",
        "UI_MODE": "fields",
        "log_model": "models",
        "to_html": "page",
        "FRONT_PAGE": "server",
        "HOST": "server",
        "PORT": "server",
        "address": "server",
        "serve": "server",
        "standing_logger": "standing.logger",
        "Opening": "store",
        "artifact_folder": "store",
        "check_installed": "store",
        "default_store": "store",
        "find_experiment": "store",
        "quiet_mlflow": "store",
        "open_client": "store",
        "opened_experiment": "store",
        "translated": "store",
        "SuiteInfo": "suite",
        "SuiteRun": "suite",
        "suite_metrics": "suite",
        "MlflowTracker": "tracker",
        "TrackingError": "writer",
    },
)
