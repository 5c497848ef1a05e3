"""The memory: the only place that knows Redis."""
