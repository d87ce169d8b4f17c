"""Tables are logged as the inputs of runs, by several processes at the same time too."""

from pathlib import Path

import sqlalchemy
from sqlalchemy.orm import Session

from tilescout.search.measure.provenance import Dataset
from tilescout.search.tracking.datasets import log_tables
from tilescout.search.tracking.store import open_client, quiet_mlflow

TABLE = Dataset("t.parquet", "/t.parquet", "0" * 64, 1, {"time_us": "double"})


def test_a_table_that_another_process_logs_at_the_same_moment_is_an_input_of_both(tmp_path: Path) -> None:
    with quiet_mlflow():
        client = open_client(f"sqlite:///{tmp_path}/mlflow.db")
        experiment = client.create_experiment("e", f"file://{tmp_path}/artifacts")
        one, other = (client.create_run(experiment).info.run_id for _ in range(2))
        others = [other]

        def be_faster(session: Session, *_: object) -> None:
            if others and any(type(each).__name__ == "SqlDataset" for each in session.new):
                log_tables(client, others.pop(), [TABLE], "replay")

        sqlalchemy.event.listen(Session, "before_flush", be_faster)
        try:
            log_tables(client, one, [TABLE], "replay")
        finally:
            sqlalchemy.event.remove(Session, "before_flush", be_faster)

        for run in (one, other):
            inputs = client.get_run(run).inputs
            assert inputs is not None
            assert [each.dataset.name for each in inputs.dataset_inputs] == ["t.parquet"]
    assert not others
