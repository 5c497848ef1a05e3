"""The target of a bulk job: an HTTP API or a store."""
