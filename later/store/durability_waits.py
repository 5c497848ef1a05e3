"""Waits until the writes before have reached a replica, and what levels of durability the store offers.

WAIT and WAITAOF cover the last write of their own connection, and offsets are those of the server: so each wait begins
with a write of its own, which covers all writes before it, of every connection. Without one, WAIT after a command that
wrote nothing, such as a repeated create, answers at once on Valkey 9.1, whatever the replicas have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from later.core.durability import Durability, NoOffer, contains
from later.core.errors import LaterError
from later.store.client import StoreClient
from later.store.codec import raise_errors
from later.store.keys import Keys
from later.store.schema import parse_info
from later.store.scripts import Command

REPLICA_GRACE_S = 60.0
"""How long no replica may be there before `replica` is refused: one that restarts is soon back."""
NOT_DURING_REWRITES = "always, but not during rewrites (no-appendfsync-on-rewrite)"
NOT_IN_CLUSTERS = "it is a cluster, of which no replica and no disk is waited for"
_REPLICA = re.compile(r"slave\d+")


class ReplicaState(NamedTuple):
    """A replica as its primary sees it: its state, and how many bytes and seconds it lags behind."""

    address: str
    state: str
    lag_bytes: int
    lag_s: int


class Offers(NamedTuple):
    """The levels that the store offers.

    `appendfsync` is "" if the server keeps no file, and None if its setting is not known. `own_level` is that of each
    answered write, without a wait.
    """

    own_level: Durability
    appendfsync: str | None
    replicas: list[ReplicaState]
    is_replica_missing: bool
    """True if no replica has been there for a minute, and the store takes writes all the same."""
    may_wait: bool
    may_wait_for_disk: bool
    """True if the server knows WAITAOF, and its user may run it; `may_wait` is the same for WAIT."""
    is_cluster: bool = False
    """True for a cluster: the writes of a call lie on several nodes, each with replicas of its own."""

    def why_not(self, level: Durability) -> NoOffer | None:
        """Return why the store does not offer a level, or None."""
        if contains(self.own_level, level):
            return None
        if level is not Durability.REPLICA and not contains(self.own_level, Durability.DISK):
            return NoOffer(level, self._why_no_disk)
        if level is not Durability.DISK and self.is_replica_missing:
            return NoOffer(level, "it has no replica, and min-replicas-to-write is 0")
        if level is not Durability.DISK and not self.may_wait:
            return NoOffer(level, NOT_IN_CLUSTERS if self.is_cluster else "this user may not run WAIT there")
        if level is Durability.REPLICA_DISK and not self.may_wait_for_disk:
            return NoOffer(
                level, "WAITAOF cannot be run there; it needs Redis or Valkey 7.2, and the user's permission"
            )
        return None

    @property
    def _why_no_disk(self) -> str:
        if self.is_cluster:
            return NOT_IN_CLUSTERS
        if self.appendfsync is None:
            return "CONFIG is not allowed there; --store-offers says what it offers"
        if self.appendfsync == NOT_DURING_REWRITES:
            return f"its appendfsync is {self.appendfsync}"
        return f"its appendfsync is {self.appendfsync}, not always" if self.appendfsync else "its appendonly is no"

    @property
    def levels(self) -> list[Durability]:
        """The levels on offer."""
        return [level for level in Durability if self.why_not(level) is None]


class DurabilityWaits:
    """Waits for replicas, and reads what the store offers."""

    def __init__(self, client: StoreClient, keys: Keys, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._barrier: Command = ("SET", keys.shards[0].barrier, "") if keys.shards else ("PING",)
        self._monotonic = monotonic
        self._missing_since: float | None = None
        self._looked_at: float | None = None
        """When it was last looked whether a replica is there."""

    @property
    def server_changes(self) -> int:
        """As in `StoreClient`."""
        return self._client.server_changes

    async def wait(self, level: Durability, timeout_ms: int) -> Durability:
        """Wait until a replica has all writes so far, or for `timeout_ms`; return `level`, or the highest one reached.

        What the primary reaches without a wait is `primary` here: a store at maxmemory takes no barrier, and then
        nothing more is known. A level below `replica` needs no wait.

        Raises:
            StoreDown: the store cannot be asked.
        """
        if self._client.is_cluster:  # whose nodes would each have to be asked
            return Durability.PRIMARY
        if level is Durability.REPLICA:
            commands: list[Command] = [self._barrier, ("WAIT", 1, timeout_ms)]
        else:  # WAITAOF alone takes a second: the replica tells of its disk only with the next heartbeat
            half_ms = max(timeout_ms // 2, 1)
            commands = [self._barrier, ("WAIT", 1, half_ms), ("WAITAOF", 0, 1, half_ms)]
        barrier, in_memory, *on_disk = await self._client.execute_waiting("wait", commands, timeout_ms / 1000)
        if isinstance(barrier, LaterError):  # then the waits cover nothing
            return Durability.PRIMARY
        if isinstance(in_memory, LaterError) or in_memory < 1:
            return Durability.PRIMARY
        if level is Durability.REPLICA_DISK and (isinstance(on_disk[0], LaterError) or on_disk[0][1] < 1):
            return Durability.REPLICA
        return level

    async def offers(self, own_level: Durability | None = None) -> Offers:
        """Read what the store offers. `own_level` is that of its answers, if the operator says so. Raises StoreDown."""
        if self._client.is_cluster:
            level = Durability.PRIMARY if own_level is None else own_level
            return Offers(level, None, [], False, may_wait=False, may_wait_for_disk=False, is_cluster=True)
        read: list[Command] = [("INFO",), ("CONFIG", "GET", "*appendfsync*"), ("WAIT", 0, 1), ("WAITAOF", 0, 0, 1)]
        answers = await self._client.execute_each("offers", read)
        info = raise_errors(answers[:1])[0]
        appendfsync = None  # a managed store allows no CONFIG
        if not int(info.get("aof_enabled", 0)):
            appendfsync = ""
        elif not isinstance(answers[1], LaterError):
            appendfsync = _parse_appendfsync(answers[1])
        replicas = parse_replicas(info)
        if own_level is None:
            own_level = Durability.DISK if appendfsync == "always" else Durability.PRIMARY
        texts = parse_info(info)
        return Offers(
            own_level,
            appendfsync,
            replicas,
            is_replica_missing=self._is_replica_missing(texts, bool(replicas)),
            may_wait=not isinstance(answers[2], LaterError),
            may_wait_for_disk=not isinstance(answers[3], LaterError),
        )

    def _is_replica_missing(self, info: dict[str, str], has_replicas: bool) -> bool:
        now, before = self._monotonic(), self._looked_at
        self._looked_at = now
        if before is not None and now - before >= REPLICA_GRACE_S:
            self._missing_since = None  # it may have been there in the meantime
        if has_replicas or "min_slaves_good_slaves" in info:  # which is there only if min-replicas-to-write is not 0
            self._missing_since = None
            return False
        self._missing_since = now if self._missing_since is None else self._missing_since
        if info.get("tcp_port") == "0":  # no replica can connect, as to an embedded store
            return True
        # a server keeps its backlog for an hour after its last replica
        had_none = info.get("repl_backlog_active") == "0" and int(info.get("uptime_in_seconds", "0")) >= REPLICA_GRACE_S
        return had_none or now - self._missing_since >= REPLICA_GRACE_S


def parse_replicas(info: Any) -> list[ReplicaState]:
    """Return the replicas that an answer to INFO names, which redis-py has parsed."""
    end = int(info.get("master_repl_offset", 0))
    return [
        ReplicaState(
            f"{fields.get('ip')}:{fields.get('port')}",
            str(fields.get("state")),
            max(end - int(fields.get("offset", 0)), 0),
            int(fields.get("lag", 0)),
        )
        for name, fields in info.items()
        if _REPLICA.fullmatch(str(name)) and isinstance(fields, dict)
    ]


def _parse_appendfsync(answer: Any) -> str:
    """Return when the server syncs its file, from an answer to CONFIG GET.

    With `no-appendfsync-on-rewrite` it does not while it rewrites the file, whatever its `appendfsync` says.
    """
    texts = [part.decode("utf-8", "replace") if isinstance(part, bytes) else str(part) for part in answer]
    settings = dict(zip(texts[::2], texts[1::2], strict=True))
    appendfsync = settings.get("appendfsync", "")
    if appendfsync == "always" and settings.get("no-appendfsync-on-rewrite") == "yes":
        return NOT_DURING_REWRITES
    return appendfsync
