"""What rows share that send requests: a load after a warm-up, and the CPU time that it took."""

from __future__ import annotations

from dataclasses import replace

from scripts.bench.daemons import Daemon
from scripts.bench.environment import Setting
from scripts.bench.load import Load, press
from scripts.bench.processes import family_cpu_s
from scripts.bench.results import Sample
from scripts.bench.stores import OwnStore

CONNECTIONS = 64


def pressed(setting: Setting, load: Load, server: Daemon, store: OwnStore | None = None) -> Sample:
    """Requests a second, and the CPU time of 1,000 of them in the server and in its store."""
    if setting.scale.warm_s:
        press(setting, replace(load, seconds=setting.scale.warm_s))
    server_before, store_before = server.cpu_s(), _cpu_s(store)
    loaded = press(setting, load)
    server_s, store_s = server.cpu_s() - server_before, _cpu_s(store) - store_before
    server.check()
    per_1000 = 1_000_000 / loaded.requests  # of seconds, in ms
    sample = {"rate": loaded.rate, "server_cpu": server_s * per_1000}
    return sample if store is None else sample | {"store_cpu": store_s * per_1000}


def _cpu_s(store: OwnStore | None) -> float:
    return 0.0 if store is None else family_cpu_s(store.pid)
