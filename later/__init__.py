"""later remembers an HTTP call and makes it when it is due."""

__version__ = "0.1.0"
