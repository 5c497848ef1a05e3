"""The daemons that all tests of this folder run on: what one shard and one process hide, many show."""

from __future__ import annotations

from typing import NamedTuple


class Configuration(NamedTuple):
    """A way to run `later up`."""

    shards: int
    processes: int

    def __str__(self) -> str:
        return f"{self.shards}-shards-{self.processes}-processes"


CONFIGURATIONS = [Configuration(shards, processes) for shards in (1, 16) for processes in (1, 2)]
