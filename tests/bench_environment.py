"""The environment of the benchmark's tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from later.embedded import find_server
from scripts.bench.environment import QUICK, Environment
from scripts.bench.stores import DURABILITIES


def an_environment(folder: Path, **sizes: float) -> Environment:
    """Return an environment without wrk, nginx, Node and pip, so that tests need none of them."""
    return Environment(
        sizes=replace(QUICK, **sizes),  # type: ignore[arg-type] # every size is a number
        store_program=find_server(),
        durabilities=list(DURABILITIES),
        wrk=None,
        nginx=None,
        node=None,
        pip=None,
        folder=folder,
    )
