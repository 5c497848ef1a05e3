"""Fixtures: a real store server, and an opened store on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from inspect import signature

import pytest
import structlog

from tests.cluster_service import ClusterService, run_cluster
from tests.environment import PROFILE
from tests.servers import SERVERS, run_server
from tests.store_fixture import StoreFixture, open_store

MANY_SHARDS = 4 if PROFILE == "quick" else 16
"""In `make test` as few as show what one does not: each runs scripts, and 16 would take a tenth of the CPU of all."""
CLUSTER = "cluster"
SHARDS_ON_CLUSTER = 16

# The default writes a table in colours, which takes twenty times as long.
structlog.configure(processors=[structlog.stdlib.add_log_level, structlog.processors.KeyValueRenderer()])


@pytest.fixture(scope="session", params=["valkey"] if PROFILE == "quick" else sorted(SERVERS))
def server_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real store server, started once for all tests: of each that there is, in `make test` of one."""
    with run_server(request.param, tmp_path_factory.mktemp(request.param)) as (url, _):
        yield url


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterService]:
    """A cluster of three nodes without replicas, started once. No test changes it but for its data."""
    with run_cluster(tmp_path_factory.mktemp("cluster"), 3, replicas=0) as service:
        yield service


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of the store with one shard and with many, and in tests/store on a cluster, too.

    Tests that need one server, by its fixture or by their mark, do not run on a cluster.
    """
    if "store_kind" not in metafunc.fixturenames:
        return
    kinds: list[int | str] = [1, MANY_SHARDS]
    if metafunc.module.__name__.startswith("tests.store.") and not _needs_one_server(metafunc):
        kinds.append(CLUSTER)
    metafunc.parametrize("store_kind", kinds, ids=["1-shard", f"{MANY_SHARDS}-shards", CLUSTER][: len(kinds)])


def _needs_one_server(metafunc: pytest.Metafunc) -> bool:
    """Return True if a test is marked, has a number of shards or a store of its own, or uses the server's URL."""
    chosen = [str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")]
    return (
        metafunc.definition.get_closest_marker("one_server") is not None
        or "store" not in metafunc.fixturenames
        or any(hasattr(metafunc.module, name) for name in ("shards", "store"))
        or any("shards" in names for names in chosen)
        or "server_url" in signature(metafunc.function).parameters
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests on a cluster once, not once for each server that there is."""
    names = [f"[{name}-{CLUSTER}" for name in sorted(SERVERS) if name != "valkey"]
    again = [item for item in items if any(name in item.name for name in names)]
    if again:
        config.hook.pytest_deselected(items=again)
        items[:] = [item for item in items if item not in set(again)]


@pytest.fixture
def shards(request: pytest.FixtureRequest, store_kind: int | str) -> int:
    """The number of shards: the one that a test asks for, or that of its kind of store."""
    number = getattr(request, "param", store_kind)
    return SHARDS_ON_CLUSTER if isinstance(number, str) else int(number)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, server_url: str, store_kind: int | str) -> str:
    """The URL of the server, or of the cluster."""
    return str(request.getfixturevalue("cluster").url) if store_kind == CLUSTER else server_url


@pytest.fixture
async def store(store_url: str, shards: int) -> AsyncIterator[StoreFixture]:
    """An empty, opened store."""
    async with open_store(store_url, shards) as built:
        yield built
