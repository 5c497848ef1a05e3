"""What a store must be before anything is written to it: of a known version, ours in shape, and safe to rely on."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from later.core.errors import LaterError, StoreMismatch
from later.store.keys import SCHEMA_VERSION, meta_key
from later.store.scripts import Command

Execute = Callable[[str, Sequence[Command]], Awaitable[list[Any]]]

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)


async def check_store(run: Execute, prefix: str, shards: int) -> None:
    """Check the server and write, or compare, what `later:meta` says of the schema.

    Raises:
        StoreMismatch: this store cannot serve this configuration.
        StoreDown: it cannot be asked.
    """
    check_server(await server_info(run))
    schema, stored = await _layout(run, meta_key(prefix), shards)
    if int(schema) != SCHEMA_VERSION:
        raise StoreMismatch(
            f"the store's data has schema version {int(schema)}, this later knows {SCHEMA_VERSION}: "
            "run the version that wrote it, or choose another --prefix"
        )
    if int(stored) != shards:
        raise StoreMismatch(
            f"--shards {shards}: the store's data was laid out with --shards {int(stored)}: "
            "use that number, or choose another --prefix"
        )


async def _layout(run: Execute, key: bytes, shards: int) -> tuple[bytes, bytes]:
    """Schema and shards as they stand, written only where they do not: a store at maxmemory takes no addition."""
    read: Command = ("HMGET", key, "schema", "shards")
    schema, stored = (await _answers(run, [read]))[0]
    if schema is None or stored is None:
        writes: list[Command] = [("HSETNX", key, "schema", SCHEMA_VERSION), ("HSETNX", key, "shards", shards)]
        schema, stored = (await _answers(run, [*writes, read]))[-1]
    return schema, stored


async def stored_shards(run: Execute, prefix: str) -> int | None:
    """How many shards the store's data has; None where there is none. Raises StoreDown."""
    answer = (await _answers(run, [("HGET", meta_key(prefix), "shards")]))[0]
    return None if answer is None else int(answer)


async def server_info(run: Execute) -> dict[str, str]:
    """What the server says of itself. Raises StoreDown."""
    answer = (await _answers(run, [("INFO",)]))[0]
    if isinstance(answer, dict):  # redis-py parses what INFO answers
        return {str(name): str(value) for name, value in answer.items()}
    lines = answer.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_server(info: dict[str, str]) -> None:
    """Refuse a server that is too old, or that may throw our keys away.

    Raises:
        StoreMismatch: with what to change.
    """
    name, found, oldest = server_version(info)
    if found < oldest:
        raise StoreMismatch(f"the store is {name} {_dotted(found)}: later needs {name} {_dotted(oldest)} or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not policy.startswith("volatile-"):
        raise StoreMismatch(
            f"the store's maxmemory-policy is {policy}: it would throw tasks away; set it to noeviction"
        )


def server_version(info: dict[str, str]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The server's name, its version and the oldest one that will do."""
    if "valkey_version" in info:
        return "Valkey", _version(info["valkey_version"]), OLDEST_VALKEY
    return "Redis", _version(info.get("redis_version", "0")), OLDEST_REDIS


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


async def _answers(run: Execute, commands: Sequence[Command]) -> list[Any]:
    answers = await run("open", commands)
    for answer in answers:
        if isinstance(answer, LaterError):
            raise answer
    return answers
