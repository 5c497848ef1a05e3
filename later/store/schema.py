"""The checks that a store must pass before anything is written: its version, its layout, that it does not evict."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any, NamedTuple

from later.core.errors import StoreMismatch
from later.core.validation import escape_name
from later.store.codec import raise_errors
from later.store.keys import SCHEMA_VERSION, meta_key
from later.store.scripts import Command

Execute = Callable[[str, Sequence[Command]], Awaitable[list[Any]]]
"""`StoreClient.execute_each`."""

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)
INDEX_IS_COMPLETE = "topics"
"""The field of `later:meta` that says that the index of topics has all of them: older versions did not keep it."""
PULL = "pull"
"""The name of pulled topics in `needs`: a version that does not know them would call the callbacks of tasks without."""
POLICY_CALLBACK = "callback"
"""The name of policies with a callback in `needs`: a version that does not know them lets tasks without one die."""
FOLLOW_UPS = "follow-ups"
"""The name of policies with `on_dead` or `on_done` in `needs`: a version that does not know them ignores them."""
MOVED_CLOCK = "moved-clock"
"""The name of a clock that was moved in `needs`: only `later dev`, and commands that read how far, go by it."""
TAGS_2 = "tags2"
"""The name of shards with tags of chosen slots in `needs`: a version that does not know them would find no key."""
MOVING = "moving"
"""The name of a move under way in `needs`, at both of its ends: nothing but the move may use either."""
MOVED = "moved"
"""The name of a move that is over in `needs` of its source. `moved_to` in `later:meta` says where its data is."""
LAYOUT_NEEDS = frozenset({TAGS_2, MOVED_CLOCK, MOVING, MOVED})
"""Names in `needs` that are about the store itself, so that another store does not take them over with the data."""
KNOWN_NEEDS = frozenset({PULL, POLICY_CALLBACK, FOLLOW_UPS, TAGS_2})
"""Names of the features that a store may need of its daemons. `needs` in `later:meta` lists them, separated by commas.

A version that stores something that older ones would misread writes its name there. So they refuse the store, which
they would otherwise damage, and stores that do without it stay usable by all.
"""


FEWEST_IN_CLUSTER = 16
MOST_IN_CLUSTER = 1024
"""Shards of a new store in a cluster. With fewer, nodes would have none; with more, tags would take long to choose."""


class Layout(NamedTuple):
    """How a store's data is laid out: its shards, and which hash tags they have (see `Keys`)."""

    shards: int
    tags: int


async def check_store(
    execute: Execute,
    prefix: str,
    shards: int,
    *,
    moves_clock: bool = False,
    in_cluster: bool = False,
    use_layout: Callable[[Layout], None] = lambda layout: None,
) -> str:
    """Check the server, and write or compare the layout in `later:meta`. Return the server's run id.

    The layout is written only if it is missing: a store at maxmemory takes no addition. With `moves_clock`, the store
    is one whose clock is moved; nothing else may use it, and it may have been used by nothing else. `use_layout` gets
    the layout of the data.

    Raises:
        StoreMismatch: this store cannot serve this configuration.
        StoreDown: the store cannot be asked.
    """
    info = await server_info(execute)
    check_server(info, in_cluster=in_cluster)
    key = meta_key(prefix)
    read: Command = ("HMGET", key, "schema", "needs", "shards", "moved_to")
    schema, needs, stored, moved_to = raise_errors(await execute("open", [read]))[0]
    if schema is None or stored is None:
        if in_cluster and stored is None:
            check_new_shards(shards)
        need = MOVED_CLOCK if moves_clock else TAGS_2 if in_cluster and schema is None else None
        writes: list[Command] = [] if need is None else [("HSETNX", key, "needs", need)]
        writes += [("HSETNX", key, "schema", SCHEMA_VERSION), ("HSETNX", key, "shards", shards)]
        if schema is None and stored is None:
            writes.append(("HSETNX", key, INDEX_IS_COMPLETE, 1))
        schema, needs, stored, moved_to = raise_errors(await execute("open", [*writes, read]))[-1]
    _check_data(schema, needs, KNOWN_NEEDS | {MOVED_CLOCK} if moves_clock else KNOWN_NEEDS, moved_to)
    if moves_clock and MOVED_CLOCK not in parse_needs(needs):
        raise StoreMismatch(
            "this is the store of an ordinary daemon: `later dev` moves the clock only of a store of its own; "
            "choose another --data, or none"
        )
    if int(stored) != shards:
        raise StoreMismatch(
            f"--shards {shards}: the store's data was laid out with --shards {int(stored)}: "
            "use that number, or choose another --prefix"
        )
    use_layout(_layout(stored, needs))
    return run_id(info)


def check_new_shards(shards: int) -> None:
    """Refuse a number of shards that a new store in a cluster cannot have. Raises StoreMismatch."""
    if not FEWEST_IN_CLUSTER <= shards <= MOST_IN_CLUSTER:
        raise StoreMismatch(
            f"--shards {shards}: a new store in a cluster has {FEWEST_IN_CLUSTER} to {MOST_IN_CLUSTER} shards, so that "
            "each node gets its part: leave the option out, for 256"
        )


async def stored_layout(
    execute: Execute, prefix: str, known_needs: Set[str] = KNOWN_NEEDS, *, in_cluster: bool = False
) -> Layout | None:
    """Return how the store's data is laid out; None if there is no data.

    Raises:
        StoreMismatch: this version of later cannot use the data.
        StoreDown: the store cannot be asked.
    """
    read: Command = ("HMGET", meta_key(prefix), "schema", "needs", "shards", "moved_to")
    info, answer = await execute("open", [("INFO",), read])
    _check_mode(parse_info(raise_errors([info])[0]), in_cluster=in_cluster)
    schema, needs, shards, moved_to = raise_errors([answer])[0]
    if schema is None or shards is None:
        return None
    _check_data(schema, needs, known_needs, moved_to)
    return _layout(shards, needs)


def _layout(shards: bytes, needs: bytes | None) -> Layout:
    return Layout(int(shards), 2 if TAGS_2 in parse_needs(needs) else 1)


def _check_data(schema: bytes, needs: bytes | None, known_needs: Set[str], moved_to: bytes | None) -> None:
    """Refuse data that this version of later, or this command, cannot use. Raises StoreMismatch."""
    if int(schema) != SCHEMA_VERSION:
        raise StoreMismatch(
            f"the store's data has schema version {int(schema)}, this later knows {SCHEMA_VERSION}: "
            "run the version that wrote it, or choose another --prefix"
        )
    unknown_needs = parse_needs(needs) - known_needs
    if MOVED in unknown_needs:
        where = escape_name((moved_to or b"another store").decode("utf-8", "replace"))
        raise StoreMismatch(
            f"the store's data was moved to {where}: use that store; nothing is delivered from this one"
        )
    if MOVING in unknown_needs:
        raise StoreMismatch(
            "a `later move` from or to this store is not over: run the same command again, which goes on, "
            "or let the source be used again by `later move --abandon`"
        )
    if MOVED_CLOCK in unknown_needs:
        raise StoreMismatch(
            "this is the store of a `later dev`, whose clock is moved: no other daemon or job may use it; "
            "choose another --data, --redis or --prefix"
        )
    unknown = ", ".join(escape_name(name) for name in sorted(unknown_needs))
    if unknown:
        raise StoreMismatch(
            f"the store's data needs what this version of later does not know: {unknown}: "
            "update later, or choose another --prefix"
        )


def parse_needs(needs: bytes | None) -> set[str]:
    """Return the names in `needs`."""
    return {name.strip() for name in (needs or b"").decode("utf-8", "replace").split(",")} - {""}


async def server_info(execute: Execute) -> dict[str, str]:
    """Return the server's INFO. Raises StoreDown."""
    return parse_info(raise_errors(await execute("open", [("INFO",)]))[0])


def parse_info(answer: Any) -> dict[str, str]:
    """Return the fields of an answer to INFO."""
    if isinstance(answer, dict):  # redis-py has parsed it
        return {str(name): str(value) for name, value in answer.items()}
    lines = answer.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def run_id(info: dict[str, str]) -> str:
    """Return what a server draws anew at each start: another one means another server, or one that has restarted."""
    return info.get("run_id", "")


def check_server(info: dict[str, str], *, in_cluster: bool = False) -> None:
    """Refuse a server that is too old, that may evict keys, or that is a node of a cluster only where none is expected.

    Raises:
        StoreMismatch: it says what to change.
    """
    _check_mode(info, in_cluster=in_cluster)
    name, found, oldest = server_version(info)
    if found < oldest:
        raise StoreMismatch(f"the store is {name} {_dotted(found)}: later needs {name} {_dotted(oldest)} or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not policy.startswith("volatile-"):
        raise StoreMismatch(
            f"the store's maxmemory-policy is {policy}: it would throw tasks away; set it to noeviction"
        )


def _check_mode(info: dict[str, str], *, in_cluster: bool) -> None:
    """Refuse a Sentinel, a node of a cluster where a server is expected, and the reverse.

    They would answer other commands with puzzling errors.

    Raises:
        StoreMismatch: it says what to name instead.
    """
    mode = info.get("redis_mode", info.get("server_mode"))
    if mode == "sentinel":
        raise StoreMismatch("this is a Sentinel, which stores nothing: name the primary that it watches")
    if mode == "cluster" and not in_cluster:
        raise StoreMismatch("this is a node of a cluster: use redis+cluster://HOST:PORT,HOST:PORT, without a database")
    if mode == "standalone" and in_cluster:
        raise StoreMismatch("this server is not in a cluster: name it by redis://, without +cluster")


def server_version(info: dict[str, str]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the server's name, its version and the oldest version that is accepted."""
    if "valkey_version" in info:
        return "Valkey", _parse_version(info["valkey_version"]), OLDEST_VALKEY
    return "Redis", _parse_version(info.get("redis_version", "0")), OLDEST_REDIS


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
