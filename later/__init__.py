"""A scheduler for HTTP callbacks."""

__version__ = "0.1.0"
