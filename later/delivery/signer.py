"""The signer of deliveries: which secrets sign a task, each prepared once."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from later.core.origin import Origin
from later.core.policy import Sign
from later.core.policy_scopes import namespace_from_topic
from later.core.signing import KeyRing, SecretScope, SigningContext, format_signatures, prepare_context, secret_scope
from later.core.task import Task
from later.delivery.http_client import LocalFault

MAX_PREPARED = 4096
"""Topics and origins whose secrets are kept: to derive one anew takes longer than to sign."""
MAX_INLINE_BYTES = 65_536
"""Longer bodies are signed in a thread: 1 MiB takes a millisecond, in which the event loop would do nothing else."""


class _Prepared(NamedTuple):
    """The contexts of the secrets that sign until a time (ms), the newest first."""

    contexts: list[SigningContext]
    until: float


class Signer:
    """Signs deliveries with the secrets of the latest `key_ring()`."""

    def __init__(self, key_ring: Callable[[], KeyRing]) -> None:
        self._key_ring = key_ring
        self._ring = KeyRing()
        self._prepared: OrderedDict[tuple[Sign, str, Origin | None], _Prepared] = OrderedDict()
        """By sign, the name of the topic or the namespace, and the origin. The one that was prepared first is first: a
        dict looks for it among all places from which one was removed."""

    def contexts(self, task: Task, sign: Sign, now: int) -> list[SigningContext]:
        """Return what signs a delivery at `now` (ms), the newest secret first; nothing if it is not signed.

        Raises:
            MissingMaster: it is to be signed with a secret that cannot be derived.
            ValueError: the callback has no origin.
        """
        if sign is Sign.OFF:
            return []
        ring = self._key_ring()
        if ring is not self._ring:
            self._ring = ring
            self._prepared.clear()
        if ring.is_empty:
            return []
        name = task.topic if sign is Sign.TOPIC else namespace_from_topic(task.topic)
        key = (sign, name, Origin.of(task.callback) if sign is Sign.ORIGIN else None)
        prepared = self._prepared.get(key)
        if prepared is None or now >= prepared.until:
            prepared = self._prepare(key, secret_scope(sign, task.topic, key[2]), now)
        return prepared.contexts

    def _prepare(self, key: tuple[Sign, str, Origin | None], scope: SecretScope, now: int) -> _Prepared:
        contexts = [prepare_context(secret) for secret in self._ring.secrets(scope, now)]
        ends = [generation.until for generation in self._ring.generations(scope) if generation.is_live(now)]
        prepared = _Prepared(contexts, min((end for end in ends if end is not None), default=math.inf))
        self._prepared.pop(key, None)
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.popitem(last=False)
        self._prepared[key] = prepared
        return prepared


async def sign_in_thread(contexts: list[SigningContext], task_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature` for a long body.

    Raises:
        LocalFault: there is no thread for it.
    """
    try:
        return await asyncio.to_thread(format_signatures, contexts, task_id, timestamp, body)
    except RuntimeError as error:
        raise LocalFault("can't start a new thread") from error
