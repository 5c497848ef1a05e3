"""The command line: the commands of `later`, and what they share."""

from later.cli.main import main

__all__ = ["main"]
