"""Empty handlers, run by one worker in one process: of later, and of other task libraries for Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from scripts.bench.environment import Environment
from scripts.bench.peer_packages import install_peer, peer_variables
from scripts.bench.processes import module_command, run_for_result, tree_cpu_s
from scripts.bench.programs import run_api
from scripts.bench.results import AtLeast, Contender, Row, Sample, ShareOfReference
from scripts.bench.stores import BenchStore, run_store

TIMEOUT_S = 300
LEAST_RATE = 12_000
EMBEDDED = "later, embedded"
PEERS = {
    "arq": ("arq", "arq"),
    "taskiq": ("taskiq", "taskiq"),
    "dramatiq, 8 threads": ("dramatiq", "dramatiq"),
    "huey, 8 threads": ("huey", "huey"),
    "Celery, solo": ("celery", "celery-solo"),
    "Celery, 8 threads": ("celery", "celery-threads"),
}
"""The packages of each peer, and what `peer_jobs` calls it."""


@contextmanager
def handler_contenders(environment: Environment) -> Iterator[list[Contender]]:
    peers = [
        Contender(
            name=name,
            store="none",
            measure=partial(measure_peer, environment, packages, peer),
            skip_reason=install_peer(environment, packages),
        )
        for name, (packages, peer) in PEERS.items()
    ]
    ahead = [ShareOfReference(1, name) for name in PEERS]
    yield [
        *peers,
        Contender(
            name=EMBEDDED,
            store="none",
            references=[*PEERS],
            targets=[AtLeast("rate", LEAST_RATE), *ahead],
            measure=partial(measure_embedded, environment),
        ),
        Contender(name="later run, over the API", store="none", measure=partial(measure_worker, environment)),
    ]


def measure_peer(environment: Environment, packages: str, peer: str) -> Sample:
    with run_store(environment, "none") as store:
        arguments = [peer, str(store.socket), str(environment.sizes.claimed)]
        return _run(environment, store, module_command("peer_jobs", *arguments), peer_variables(packages))


def measure_embedded(environment: Environment) -> Sample:
    with run_store(environment, "none") as store:
        return _run(environment, store, module_command("handler_jobs", store.url, str(environment.sizes.claimed)))


def measure_worker(environment: Environment) -> Sample:
    with run_store(environment, "none") as store, run_api(environment, "serve", store) as server:
        return _run(environment, store, module_command("handler_jobs", server.url, str(environment.sizes.claimed)))


def _run(
    environment: Environment, store: BenchStore, command: list[str], variables: dict[str, str] | None = None
) -> dict[str, float]:
    """Return the handlers per second, and the CPU time (ms) of 1,000 in the worker, and in the store with creates."""
    count = environment.sizes.claimed
    before = tree_cpu_s(store.pid)
    with environment.temporary_folder() as folder:
        result = run_for_result(command, folder, "handlers", TIMEOUT_S, variables)
    per_1000 = 1_000_000 / count  # of seconds, in ms
    return {
        "rate": count / result["seconds"],
        "consumer_cpu": result["cpu_s"] * per_1000,
        "store_cpu": (tree_cpu_s(store.pid) - before) * per_1000,
    }


HANDLERS = Row(
    name="handlers",
    title="25,000 empty handlers, run by one worker in one process",
    target="embedded: ≥ 12,000/s, and more than arq, taskiq, dramatiq, huey and Celery",
    figures=("rate",),
    details=("consumer_cpu", "store_cpu"),
    contenders=handler_contenders,
)
