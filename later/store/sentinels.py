"""Sentinels: servers that watch a primary and its replicas, and say which of them is the primary.

They are asked when there is no connection to the primary, and each second besides, because a primary that was cut off
from its replicas and from most sentinels still answers: what it acknowledges meanwhile is lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import redis.exceptions as errors
import structlog
from redis.asyncio.connection import AbstractConnection

from later.address_types import Address
from later.store.unwaited import retrieve_error

log = structlog.get_logger("later.sentinels")

ANSWER_TIMEOUT_S = 0.5
"""How long one sentinel may take. All are asked at once, and those that answer decide."""
ASK_EVERY_S = 1.0
"""How often they are asked while all is well."""
RETRY_S = 0.1
"""Pause before they are asked again while no primary is found."""
SWITCH = b"+switch-master"
"""The channel on which a sentinel says that it names another primary."""

NewConnection = Callable[[Address], AbstractConnection]
"""Returns a connection, not yet connected, to a sentinel."""
IsPrimary = Callable[[Address], Awaitable[bool]]
"""Returns True if the server at an address says that it is a primary."""
OnFailover = Callable[[Address, Address], Awaitable[None]]
"""Called with the address of the primary before and that of the one now."""


class Opinion(NamedTuple):
    """The primary that one sentinel names (None: it does not watch the service), since which of its failovers, and the
    other sentinels that it knows."""

    primary: Address | None
    epoch: int
    others: list[Address]


class Sentinels:
    """The sentinels of one service. `on_failover` is called whenever another server than before is the primary."""

    def __init__(
        self, service: str, seeds: Sequence[Address], new_connection: NewConnection, is_primary: IsPrimary
    ) -> None:
        self._service = service
        self._new_connection = new_connection
        self._is_primary = is_primary
        self._sentinels = {address: Sentinel(service, new_connection(address)) for address in seeds}
        self._used: Address | None = None
        """The primary to which a connection was made last."""
        self._is_known = False
        """True while nothing speaks against the address in `_used`."""
        self._asking: asyncio.Task[list[Address]] | None = None
        self._wake = asyncio.Event()
        self._watching: list[asyncio.Task[NoReturn]] = []
        self._closed = False
        self.failovers = 0
        """How often another server than before has become the primary."""
        self.why_not_found: Exception | None = None
        """Why no primary was found when one was looked for last; None if one was."""
        self.on_failover: list[OnFailover] = []

    @property
    def used(self) -> Address | None:
        """The primary to which a connection was made last."""
        return self._used

    async def candidates(self) -> list[Address]:
        """Return the addresses to try as the primary's, the likeliest first.

        Raises:
            ConnectionError: no sentinel that answers knows a primary.
        """
        if self._is_known and self._used is not None:
            return [self._used]
        return await self._ask()

    async def confirm(self, address: Address) -> None:
        """Note that a server has answered as the primary."""
        before, self._used, self._is_known = self._used, address, True
        self.why_not_found = None
        if not self._watching and not self._closed:
            self._watching = [asyncio.create_task(self._watch()), asyncio.create_task(self._listen())]
        if before is not None and before != address:
            self.failovers += 1
            log.warning("store failed over", service=self._service, before=str(before), now=str(address))
            for call in self.on_failover:
                await call(before, address)

    def doubt(self) -> None:
        """Ask anew before the next connection is made, and as soon as possible: something failed at the primary."""
        self._is_known = False
        self._wake.set()

    async def aclose(self) -> None:
        """Stop watching, and close the connections to the sentinels, also those that are opened from now on."""
        self._closed = True
        tasks = [*self._watching, *([self._asking] if self._asking is not None else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._watching = []
        await self._close_connections()

    async def _close_connections(self) -> None:
        for sentinel in self._sentinels.values():
            await sentinel.close()

    async def _ask(self) -> list[Address]:
        """Ask all sentinels. Callers at the same time share the answer.

        Raises:
            ConnectionError: as `candidates`, or the store was closed meanwhile.
        """
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask_all())
            asking.add_done_callback(retrieve_error)
        await asyncio.wait([asking])
        if asking.cancelled():
            raise errors.ConnectionError("the store was closed")
        return list(asking.result())

    async def _ask_all(self) -> list[Address]:
        asked = list(self._sentinels.items())
        answers = await asyncio.gather(*(sentinel.ask() for _, sentinel in asked), return_exceptions=True)
        opinions = [answer for answer in answers if isinstance(answer, Opinion)]
        for other in {other for opinion in opinions for other in opinion.others} - set(self._sentinels):
            self._sentinels[other] = Sentinel(self._service, self._new_connection(other))
        if self._closed:
            await self._close_connections()
        found = rank(opinions)
        if not found:
            raise self._explain(
                opinions, [(address, answer) for (address, _), answer in zip(asked, answers, strict=True)]
            )
        return found

    def _explain(
        self, opinions: Sequence[Opinion], answers: Iterable[tuple[Address, Opinion | BaseException]]
    ) -> errors.ConnectionError:
        if opinions:
            return errors.ConnectionError(f'the sentinels watch no service "{self._service}"')
        failed = "; ".join(f"{address}: {_describe(answer)}" for address, answer in answers)
        return errors.ConnectionError(f"no sentinel answers: {failed}")

    async def _watch(self) -> NoReturn:
        """Ask each second, or when woken, whether another server is the primary now."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY_S):
                    await self._wake.wait()
            self._wake.clear()
            try:
                with suppress(errors.RedisError, OSError):
                    newest, *_ = await self._ask()
                    if newest != self._used and await self._is_primary(newest):
                        await self.confirm(newest)
            except Exception:  # nothing may end the watch: a primary that was replaced would be used for ever
                log.exception("watch of sentinels failed", service=self._service)
            await asyncio.sleep(RETRY_S)  # otherwise many failures at once would ask as often

    async def _listen(self) -> NoReturn:
        """Wake the watch when a sentinel says that it names another primary."""
        while True:
            for address in list(self._sentinels):
                with suppress(Exception):  # the watch asks all the same, and tells why that fails
                    await self._listen_to(address)
                await asyncio.sleep(ASK_EVERY_S)

    async def _listen_to(self, address: Address) -> NoReturn:
        connection = self._new_connection(address)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                await connection.send_command("SUBSCRIBE", SWITCH, check_health=False)
                await connection.read_response()
            while True:
                await connection.read_response()
                self._wake.set()
        finally:
            await connection.disconnect(nowait=True)


class Sentinel:
    """One sentinel, with a connection that is kept."""

    def __init__(self, service: str, connection: AbstractConnection) -> None:
        self._service = service
        self._connection = connection

    async def ask(self) -> Opinion:
        """Return its opinion.

        Raises:
            RedisError, OSError, TimeoutError: it did not answer in time, or refuses to.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                for command in ("GET-MASTER-ADDR-BY-NAME", "MASTER", "SENTINELS"):
                    await self._connection.send_command("SENTINEL", command, self._service, check_health=False)
                answers = [await self._read() for _ in range(3)]
        except BaseException:
            await self._connection.disconnect(nowait=True)
            raise
        return parse_opinion(*answers)

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def _read(self) -> Any:
        """Return an answer; None for an error, which all but the first command answer where it has no such service."""
        try:
            return await self._connection.read_response()
        except errors.AuthenticationError:
            raise
        except errors.ResponseError as error:
            if str(error).startswith(("NOPERM", "NOAUTH")):
                raise
            return None


def parse_opinion(named: list[bytes] | None, primary: list[bytes] | None, others: list[list[bytes]] | None) -> Opinion:
    """Return the opinion in a sentinel's answers to GET-MASTER-ADDR-BY-NAME, MASTER and SENTINELS."""
    address = None if named is None else Address(named[0].decode(), int(named[1]))
    epoch = _fields(primary or []).get(b"config-epoch", b"0")
    found = [_fields(other) for other in others or []]
    return Opinion(
        address,
        int(epoch),
        [Address(other[b"ip"].decode(), int(other[b"port"])) for other in found if b"ip" in other and b"port" in other],
    )


def _fields(answer: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(answer[::2], answer[1::2], strict=False))


def rank(opinions: Iterable[Opinion]) -> list[Address]:
    """Return the primaries that are named: first that of most sentinels, of as many that of the latest failover."""
    votes: Counter[Address] = Counter()
    epochs: dict[Address, int] = {}
    for opinion in opinions:
        if opinion.primary is not None:
            votes[opinion.primary] += 1
            epochs[opinion.primary] = max(opinion.epoch, epochs.get(opinion.primary, 0))
    return sorted(votes, key=lambda address: (-votes[address], -epochs[address], address))


def _describe(answer: Opinion | BaseException) -> str:
    if isinstance(answer, TimeoutError | errors.TimeoutError):
        return f"no answer within {ANSWER_TIMEOUT_S:g} s"
    return str(answer)
