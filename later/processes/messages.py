"""What a supervisor and its children tell each other, but for single words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from later import __version__
from later.config import Config
from later.metrics import Figures
from later.option_types import Address
from later.processes.rpc import NoAnswer


class Sight(msgspec.Struct):
    """What a process saw of the store, by metric; and, where it saw nothing, why."""

    seen: dict[str, Figures]
    failure: str | None = None


class Leaving(msgspec.Struct):
    """What a process has done when it ends; and, where it cannot do its work, why, and whether no other could."""

    figures: Figures
    failure: str | None = None
    of_all: bool = False


def orders(config: Config, places: Sequence[Address]) -> dict[str, Any]:
    """What a process is told at its start: everything; for this must not be seen by others, as a command line is.

    `places` is where it answers, in numbers: whether a name still means them is not asked at each start.
    """
    return {"version": __version__, "config": msgspec.to_builtins(config, enc_hook=str), "places": list(places)}


def understood(orders: dict[str, Any]) -> tuple[Config, list[Address]]:
    """Raises NoAnswer: they are another version's, for this one was installed while the supervisor ran."""
    if orders["version"] != __version__:
        raise NoAnswer(f"the supervisor is later {orders['version']}, this process {__version__}: restart them all")
    config = msgspec.convert(orders["config"], Config, dec_hook=_path)
    return config, msgspec.convert(orders["places"], list[Address])


def _path(kind: type[Path], text: str) -> Path:
    return kind(text)
