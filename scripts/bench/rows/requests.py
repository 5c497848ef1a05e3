"""Measure a load of HTTP requests after a warm-up, with its CPU time."""

from __future__ import annotations

from dataclasses import replace

from scripts.bench.environment import Environment
from scripts.bench.load import Load, run_load
from scripts.bench.processes import tree_cpu_s
from scripts.bench.programs import Program
from scripts.bench.results import Sample
from scripts.bench.stores import BenchStore

CONNECTIONS = 64


def measure_requests(environment: Environment, load: Load, server: Program, store: BenchStore | None = None) -> Sample:
    """Measure the load after a warm-up."""
    if environment.sizes.warm_up_s:
        run_load(environment, replace(load, seconds=environment.sizes.warm_up_s))
    return measure_load(environment, load, server, store)


def measure_load(environment: Environment, load: Load, server: Program, store: BenchStore | None = None) -> Sample:
    """Return the requests per second and the CPU time (ms) of 1,000 requests in the server and its store."""
    server_before, store_before = server.cpu_s(), _cpu_s(store)
    result = run_load(environment, load)
    server_s, store_s = server.cpu_s() - server_before, _cpu_s(store) - store_before
    server.check()
    per_1000 = 1_000_000 / result.requests  # of seconds, in ms
    sample = {"rate": result.rate, "server_cpu": server_s * per_1000}
    return sample if store is None else sample | {"store_cpu": store_s * per_1000}


def _cpu_s(store: BenchStore | None) -> float:
    return 0.0 if store is None else tree_cpu_s(store.pid)
