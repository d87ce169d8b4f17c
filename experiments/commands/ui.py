"""``tilescout ui``: the MLflow UI on the trials."""

from pathlib import Path

import click

from tilescout.experiments.commands.options import examples, named_store, store_option
from tilescout.search.tracking.server import FRONT_PAGE, HOST, PORT, address, serve
from tilescout.search.tracking.store import store_under
from tilescout.spaces.errors import StoreError


@click.command(
    epilog=examples(
        "tilescout ui",
        "tilescout ui --store results --port 5001",
        "tilescout ui --mlflow sqlite:////data/mlflow.db",
    )
)
@store_option
@click.option(
    "--mlflow", "mlflow_uri", metavar="URI", callback=named_store, help="Another store than the one in the folder."
)
@click.option("--host", default=HOST, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port to listen on.")
def ui(store: Path, mlflow_uri: str | None, host: str, port: int) -> int:
    """Open the MLflow UI on the trials of a store; Ctrl-C ends it."""
    if mlflow_uri is None and not (store / "mlflow.db").is_file():
        raise StoreError(f"no MLflow store in {store}: `tilescout tune` makes one")
    uri, root = (mlflow_uri, None) if mlflow_uri else store_under(store)

    def begin() -> None:  # no bar: MLflow prints lines of its own meanwhile
        click.echo("MLflow starts, which takes some seconds", err=True)

    def announce() -> None:
        click.echo(f"MLflow UI: {address(FRONT_PAGE, host, port)} (Ctrl-C ends it)", err=True)

    return serve(uri, root, host, port, begin, announce)
