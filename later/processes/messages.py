"""What a supervisor and its children tell each other, but for single words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from later import __version__
from later.config import Config
from later.metrics import Figures
from later.processes.channel import NoAnswer


class Sight(msgspec.Struct):
    """What a process saw of the store, by metric; and, where it saw nothing, why."""

    seen: dict[str, Figures]
    failure: str | None = None


class Leaving(msgspec.Struct):
    """What a process has done when it ends; and, where it cannot do its work, nor could another, why."""

    figures: Figures
    failure: str | None = None


def orders(config: Config) -> dict[str, Any]:
    """What a process is told at its start: everything; for this must not be seen by others, as a command line is."""
    return {"version": __version__, "config": msgspec.to_builtins(config, enc_hook=str)}


def config_of(orders: dict[str, Any]) -> Config:
    """Raises NoAnswer: they are another version's, for this one was installed while the supervisor ran."""
    if orders["version"] != __version__:
        raise NoAnswer(f"the supervisor is later {orders['version']}, this process {__version__}: restart them all")
    return msgspec.convert(orders["config"], Config, dec_hook=_path)


def _path(kind: type[Path], text: str) -> Path:
    return kind(text)
