"""The command line."""

from later.cli.main import main

__all__ = ["main"]
