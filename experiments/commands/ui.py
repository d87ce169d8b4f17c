"""``tilescout ui``: the MLflow UI on the trials."""

import sys
from pathlib import Path

import click

from tilescout.experiments.commands.options import examples, store_option


@click.command(
    epilog=examples(
        "tilescout ui",
        "tilescout ui --store results --port 5001",
        "tilescout ui --mlflow http://tracking:5000",
    )
)
@store_option
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="Another store than the one in the folder.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True, help="Port to listen on.")
def ui(store: Path, mlflow_uri: str | None, host: str, port: int) -> int:
    """Open the MLflow UI on the trials of a store; Ctrl-C ends it."""
    from tilescout.search.tracking import default_store, front_page, serve

    uri, root = (mlflow_uri, None) if mlflow_uri else default_store(store)
    print(f"MLflow UI: {front_page(host, port)} (Ctrl-C ends it)", file=sys.stderr)
    return serve(uri, root, host, port)
