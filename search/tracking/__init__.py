"""MLflow: live logging of a search, and the UI on what was logged. MLflow itself is imported when it is used."""

from tilescout.search.tracking.server import front_page, serve
from tilescout.search.tracking.store import default_store
from tilescout.search.tracking.suite import SuiteInfo, SuiteRun
from tilescout.search.tracking.tracker import MlflowTracker
from tilescout.search.tracking.writer import TrackingError

__all__ = ["MlflowTracker", "SuiteInfo", "SuiteRun", "TrackingError", "default_store", "front_page", "serve"]
