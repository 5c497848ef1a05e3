"""What a supervisor and its children tell each other, but for single words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from later import __version__
from later.config import Config
from later.metrics import MetricSamples
from later.option_types import Address
from later.processes.rpc import RpcError


class StoreSnapshot(msgspec.Struct):
    """What a process saw of the store, by metric; and, where it saw nothing, why."""

    samples: dict[str, MetricSamples]
    failure: str | None = None


class ExitReport(msgspec.Struct):
    """What a process has done when it ends; and, where it cannot do its work, why, and whether no other could."""

    samples: MetricSamples
    failure: str | None = None
    fatal_for_all: bool = False


def startup_config(config: Config, addresses: Sequence[Address]) -> dict[str, Any]:
    """What a process is told at its start: everything; for this must not be seen by others, as a command line is.

    `places` is where it answers, in numbers: whether a name still means them is not asked at each start.
    """
    return {"version": __version__, "config": msgspec.to_builtins(config, enc_hook=str), "places": list(addresses)}


def decode_startup(orders: dict[str, Any]) -> tuple[Config, list[Address]]:
    """Raises NoAnswer: they are another version's, for this one was installed while the supervisor ran."""
    if orders["version"] != __version__:
        raise RpcError(f"the supervisor is later {orders['version']}, this process {__version__}: restart them all")
    config = msgspec.convert(orders["config"], Config, dec_hook=_path)
    return config, msgspec.convert(orders["places"], list[Address])


def _path(kind: type[Path], text: str) -> Path:
    return kind(text)
