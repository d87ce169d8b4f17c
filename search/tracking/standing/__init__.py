"""Studies are logged by a process that stands by with MLflow imported."""
