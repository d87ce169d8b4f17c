"""The load of the machine while a live search runs, as MLflow's system metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

_INTERVAL = 5.0  # seconds between two samples


@contextmanager
def system_metrics(client: "MlflowClient", uri: str, run_id: str) -> Iterator[None]:
    """Log CPU, memory, disk, network and GPUs of this machine to a run of the store at `uri`, from a thread.

    An outage of the store ends the logging of these and nothing else.
    """
    if find_spec("psutil") is None:
        client.set_tag(run_id, "system_metrics", "none: psutil is not installed")
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, sampling_interval=_INTERVAL, resume_logging=True, tracking_uri=uri)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()
