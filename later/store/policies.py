"""The policies of topics and namespaces as this process knows them: read again each second, changed one at a time.

What has changed is read, and what a change costs does not depend on how many policies there are.

A decision takes one `Policies` and stays with it, so that no task is judged by a mix of old and new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from later.core.errors import Conflict, LaterError, NodeDown
from later.core.policy import Deliver, Policy
from later.core.policy_scopes import FOLLOW_UP_FIELDS, NO_SETTINGS, Level, Policies, PolicyScope, Settings
from later.store import scripts
from later.store.client import StoreClient
from later.store.keys import Bucket, Keys
from later.store.policy_reader import PoliciesRead, PolicyReader, encode_settings
from later.store.schema import FOLLOW_UPS, POLICY_CALLBACK, PULL
from later.store.scripts import Argument, Command
from later.store.shared_read import FRESH_S, MAX_STARTS, PacedRead, SharedRead

CHANGES_KEPT = 1000
"""Changes that the store remembers: a process that has missed more reads all policies anew."""


class Replacement(NamedTuple):
    """New settings of a scope; and the new metadata of the queue that it is, as JSON (b"": none; None: they stay)."""

    settings: Settings
    metadata: bytes | None = None


class PolicyBook:
    """Reads and changes policies. `daemon` applies where nothing is set; `monotonic` returns seconds.

    While their node is away, and only then, those that were read last are good for `grace_s`.
    """

    def __init__(
        self, client: StoreClient, keys: Keys, daemon: Policy, monotonic: Callable[[], float], grace_s: float = 0.0
    ) -> None:
        self._client = client
        self._written_keys = [keys.policies, keys.policy_changes, keys.queues]
        self._meta = keys.meta
        self._shards = keys.shards
        self._monotonic = monotonic
        self.latest = Policies(daemon)
        """The policies as they were read last."""
        self._version: int | None = None
        self._reader = PolicyReader(client, keys)
        self.ramps: Mapping[str, int] = {}
        """Topics that return to full speed after a pause or a hold, and when (ms) they reach it."""
        self.held_origin_topics: Mapping[str, int] = {}
        """Topics of which an origin is held, and when (ms) the last of these holds ends."""
        self._read_at = -FRESH_S
        self.shared_read = SharedRead(
            client, "policies", self._command, self._accept, monotonic, grace_s=grace_s, complete=self._complete
        )
        self._paced_read = PacedRead(self.shared_read.renew, client.timeout_s)
        self._changing = asyncio.Lock()

    @property
    def is_read(self) -> bool:
        """True if the policies were ever read."""
        return self._version is not None

    async def current(self) -> Policies:
        """Return policies read within `FRESH_S`, or the grace. Raises StoreDown if they must be read, and cannot be."""
        if self._monotonic() - self._read_at >= FRESH_S:
            await self.shared_read.share_unless_away(self._read_at)
        return self.latest

    async def look(self) -> Policies:
        """Return the policies to show: as they are set now, or those that are good while their node is away.

        Raises StoreDown.
        """
        try:
            await self.shared_read.renew()
        except NodeDown:
            if not self.shared_read.is_in_grace(self._read_at):
                raise
        return self.latest

    async def read(self) -> Policies:
        """Return the policies as they are set now. Raises StoreDown."""
        await self.shared_read.renew()
        return self.latest

    async def reread(self) -> Policies:
        """Return policies that are read from now on, for a caller that `latest` refuses. Raises StoreDown.

        They are the same object if nothing has changed; while their node is away, they are those that were read last.
        Callers that are refused again and again make the store read as often as `PacedRead` says; all that wait for
        that share it.
        """
        try:
            await self._paced_read.wait()
        except NodeDown:
            if not self.shared_read.is_in_grace(self._read_at):
                raise
        return self.latest

    async def change(self, scope: PolicyScope, edit: Callable[[Settings], Settings]) -> Policies:
        """Replace the settings of one scope by what `edit` makes of them; return the policies from then on.

        Raises: as `replace_settings`.
        """
        return await self.replace_settings(scope, lambda policies: edit(policies.settings_at(scope)))

    async def replace_settings(self, scope: PolicyScope, decide: Callable[[Policies], Settings]) -> Policies:
        """Replace the settings of one scope by those that `decide` returns; return the policies from then on.

        Raises: as `replace`.
        """

        async def decide_settings(policies: Policies) -> Replacement:
            return Replacement(decide(policies))

        return await self.replace(scope, decide_settings)

    async def replace(
        self, scope: PolicyScope, decide: Callable[[Policies], Awaitable[Replacement | None]]
    ) -> Policies:
        """Replace the settings of one scope, and perhaps the metadata of its queue, by what `decide` returns.

        `decide` gets the policies that the change is made from; None leaves all as it is. If others are set meanwhile,
        it decides again. A topic that becomes pulled is held at once, and so are the topics of a namespace when a
        worker meets them. Returns the policies from then on.

        Raises:
            Refused: the result is no valid policy.
            Conflict: another change was made in the meantime each time.
            StoreDown: whether the policies were changed is not known.
        """
        async with self._changing:  # many at once in this process would make each other start over
            for _ in range(MAX_STARTS):
                before = await self.read()
                version, replacement = self._version or 0, await decide(before)
                if replacement is None:
                    return before
                settings = replacement.settings
                after = before.with_settings(scope, settings)
                for need in needs_of(settings):  # first, so that no older daemon starts meanwhile
                    await self._client.execute("set_policy", scripts.NEED.call([self._meta], [need]))
                command = scripts.SET_POLICY.call(self._written_keys, _arguments(scope, version, replacement))
                if await self._client.execute("set_policy", command) >= 0:
                    if scope.level is Level.TOPIC and after.for_scope(scope).deliver is Deliver.PULL:
                        await self._hold(scope.name)
                    await self.shared_read.renew_after_change()
                    return self.latest
            raise Conflict("the policies changed each time they were looked at: try again")

    async def _hold(self, topic: str) -> None:
        """Hold a topic in all shards until it is resumed. If that fails, the worker that meets the topic does it."""
        holds = [scripts.HOLD.call([shard.wakes[Bucket.DELAY], shard.topics], [topic, "inf"]) for shard in self._shards]
        with suppress(LaterError):
            await self._client.execute_all("hold", holds)

    def _command(self) -> Command:
        """Return the command that reads what has changed since the last read."""
        return self._reader.command_since(self._version)

    async def _complete(self, answer: Any) -> PoliciesRead:
        return await self._reader.complete(answer, self.latest.settings)

    def _accept(self, read: PoliciesRead, asked_at: float) -> None:
        if read.settings is not self.latest.settings:
            self.latest = Policies(self.latest.daemon, read.settings)
        self.ramps, self.held_origin_topics = read.ramps, read.held_origin_topics
        self._version, self._read_at = read.version, asked_at


def needs_of(settings: Settings) -> list[str]:
    """Return the names of what every daemon must know on a store with these settings."""
    fields = settings.fields
    needs = {
        PULL: fields.get("deliver") == Deliver.PULL,
        POLICY_CALLBACK: bool(fields.get("callback")),
        FOLLOW_UPS: any(fields.get(name) for name in FOLLOW_UP_FIELDS),
    }
    return [need for need, is_needed in needs.items() if is_needed]


def _arguments(scope: PolicyScope, version: int, replacement: Replacement) -> list[Argument]:
    """Return the arguments of the script `set_policy`."""
    settings, metadata = replacement
    written = b"" if settings == NO_SETTINGS else encode_settings(settings)
    queue = "" if metadata is None else scope.name
    return [f"{scope.level}:{scope.name}", version, written, CHANGES_KEPT, queue, metadata or b""]
