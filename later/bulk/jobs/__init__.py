"""The jobs that Spark runs: create, verify, cancel, export."""
