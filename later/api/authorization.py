"""The check of every call's API key, made from the head of the request alone, before its body is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

import structlog
from aiohttp import hdrs, web
from multidict import istr

from later.api.console_sessions import ConsoleSessions
from later.core.api_keys import ApiKey, Scope, has_key_form, has_valid_check, id_in_key
from later.core.call_rate import CallRate
from later.core.caller import ANYBODY, NOBODY, Caller
from later.core.console_session import is_valid_session, key_id_in_session, make_session
from later.core.errors import Denied, NotAllowed, NotKnown, Refused, StoreDown, TooOften
from later.core.key_set import KeyEntry, KeySet
from later.store.key_book import KeyBook
from later.store.shared_read import FRESH_S

CALLER = web.RequestKey("caller", Caller)
"""The key under which an admitted request keeps its caller."""
LOG_EVERY_S = 1.0
"""Refusals are logged once in this time at most: callers without a key must not fill the log."""
MAX_RATES = 100_000
"""Keys whose rates are known at a time. Those of keys that are gone are forgotten, now and then, with all others."""
UNKNOWN = "unknown"
"""Why a key is refused that is well formed: the store has not this one."""
UNKNOWN_KEY = "key: this key is not known here"
ENDED_SESSION = "the session has ended: sign in again"
EXPECTED_HEADER = "this call needs a key: Authorization: Bearer later_…"

log = structlog.get_logger()


class NoScope(StrEnum):
    """The requirement of a route without a scope: nothing, or any key."""

    OPEN = "open"
    ANY_KEY = "any key"


_HEADER = hdrs.AUTHORIZATION
_TOKEN_HEADER = istr("X-Auth-Token")
_NO_HEADER = [""]
_OPEN, _METRICS = NoScope.OPEN, Scope.METRICS  # to look up a member of an enum takes half as long as the digest


class Authorization:
    """The check of keys: those in the store's `book`, and the root key, which is in no store. Without a book, all may.

    `is_optional`: no key is needed as long as there is no root key and the store has never had a key. A call without a
    key counts as one of the key of its session, if it has one of `sessions`. `count_denial` gets the reason of each
    refusal; `monotonic` returns seconds.
    """

    def __init__(
        self,
        book: KeyBook | None = None,
        *,
        root_key: ApiKey | None = None,
        is_optional: bool = False,
        sessions: ConsoleSessions | None = None,
        count_denial: Callable[[str], None] = lambda reason: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._root = None if root_key is None else KeySet([root_key])
        self._is_optional = is_optional and root_key is None
        self._sessions = sessions
        self._count_denial = count_denial
        self._monotonic = monotonic
        self._rates: dict[str, CallRate] = {}
        self._logged_at = -LOG_EVERY_S
        self._not_logged = 0

    @property
    def reads_keys(self) -> bool:
        """True if the keys in the store decide on calls."""
        return self._book is not None

    @property
    def asks_for_keys(self) -> bool:
        """True if calls need a key, as far as the store is known."""
        return self._book is not None and not (self._is_optional and not self._book.latest.has_had_keys)

    @property
    def has_had_keys(self) -> bool:
        """False if the store was read, and has never had a key, and there is no root key."""
        return self._root is not None or self._book is None or not self._book.is_read or self._book.latest.has_had_keys

    @property
    def has_keys(self) -> bool:
        """False if the store was read, and calls need a key, and there is none."""
        if not self.asks_for_keys or self._root is not None or self._book is None or not self._book.is_read:
            return True
        return bool(self._book.latest.keys)

    def find_caller(
        self, request: web.BaseRequest, scope: Scope | NoScope, known: KeySet | None = None, token: str | None = None
    ) -> Caller | None:
        """Return the caller as `admit` does, by the keys that are known, or None if they must be read first.

        They must if they were read too long ago, or have not the key that was sent, unless it is mistyped. Without
        `known`, these are the keys that were read last. `token` is the key that was sent; if it is None, the header
        Authorization has it.
        """
        book = self._book
        if book is None or scope is _OPEN:
            return ANYBODY if book is None else NOBODY
        if known is None and self._monotonic() - book.read_at < FRESH_S:
            known = book.latest
        if self._is_optional and not book.latest.has_had_keys:
            return None if known is None else ANYBODY
        if token is None:
            sent = request.headers.getall(_HEADER, _NO_HEADER)
            if len(sent) > 1:
                raise Refused("Authorization: expected it once, got it more than once", "Authorization")
            header = sent[0]
            token = header[7:].strip() if header[:7] == "Bearer " else _sent_key(header)
        entry = None if self._root is None else self._root.find(token)
        if entry is None:
            if known is None:
                return None
            entry = known.find(token)
            if entry is None:
                return self._find_session_caller(request, scope, known, token)
        caller = entry.caller
        if entry.has_limits or scope not in caller.scopes or scope is _METRICS:
            self._check(entry, scope, book)
        book.used.add(entry.key.id)
        return caller

    def _find_session_caller(
        self, request: web.BaseRequest, scope: Scope | NoScope, known: KeySet, token: str
    ) -> Caller | None:
        """Return the caller of a request without a key that is known: by the cookie of its session, if it has one.

        Return and raises: as `find_caller`.
        """
        book, sessions = self._book, self._sessions
        assert book is not None
        session = None if token or sessions is None else sessions.find(request)
        if session is None or sessions is None:
            _check_form(token)
            return None  # another process may have made it a moment ago
        if not sessions.secret.is_fresh:
            return None
        id = key_id_in_session(session)
        if id is None:
            raise NotKnown(ENDED_SESSION, reason=UNKNOWN)
        entry = (self._root and self._root.get(id)) or known.get(id)
        if entry is None:
            return None
        secret = sessions.secret.latest
        if secret is None or not is_valid_session(session, entry.key, secret, book.now()):
            raise NotKnown(ENDED_SESSION, reason=UNKNOWN)
        caller = sessions.restrict(entry.caller)
        if scope in entry.caller.scopes and scope not in caller.scopes:
            raise NotAllowed("this console is read-only", reason="scope")
        if entry.has_limits or scope not in caller.scopes or scope is _METRICS:
            self._check(entry._replace(caller=caller), scope, book)
        book.used.add(entry.key.id)
        return caller

    async def sign_in(self, text: str) -> str:
        """Return the cookie of a new session of a key.

        Raises:
            Refused: no key is asked for here.
            NotKnown: the key is unknown, mistyped or has ended.
            StoreDown: the keys could not be read.
        """
        book, sessions = self._book, self._sessions
        if book is None or sessions is None:
            raise Refused("key: this daemon asks for no keys", "key")
        entry = None if self._root is None else self._root.find(text)
        for read in (book.current, book.reread):
            known = await read()
            entry = entry or known.find(text)
            if entry is not None:
                _check_end(entry.key, book)
                book.used.add(entry.key.id)
                return make_session(entry.key, await sessions.secret.make(), book.now())
            if not has_valid_check(text):
                raise NotKnown(UNKNOWN_KEY, reason="mistyped")
        raise NotKnown(UNKNOWN_KEY, reason=UNKNOWN)

    async def admit(self, request: web.BaseRequest, scope: Scope | NoScope, token: str | None = None) -> Caller:
        """Return the caller of a request to a route with this scope. `token` is as in `find_caller`.

        Raises:
            Refused: the request has more than one header `Authorization`, which RFC 9110 (section 5.3) does not allow:
                a proxy before us may go by another one of them.
            NotKnown: it has no key, or one that is unknown or has ended.
            NotAllowed: the key has not this scope.
            TooOften: the key's rate is used up.
            StoreDown: the keys could not be read.
        """
        caller = self.find_caller(request, scope, token=token)
        if caller is not None:
            return caller
        assert self._book is not None
        try:
            for read in (self._book.current, self._book.reread):
                known = await read()
                if self._sessions is not None and self._sessions.find(request) is not None:
                    await self._sessions.secret.read()
                caller = self.find_caller(request, scope, known, token)
                if caller is not None:
                    return caller
        except StoreDown:
            if self._shows_metrics_without_store(scope):
                return ANYBODY
            raise
        raise NotKnown(EXPECTED_HEADER, reason=UNKNOWN)

    def _shows_metrics_without_store(self, scope: Scope | NoScope) -> bool:
        """Return True for metrics if the store had never had a key when it was read last, so that they were open.

        They need no store, and show above all that it is away.
        """
        book = self._book
        return (
            scope is _METRICS
            and self._is_optional
            and book is not None
            and book.is_read
            and not book.latest.has_had_keys
        )

    async def may_see_why(self, request: web.BaseRequest) -> bool:
        """Return True if a caller may see why the daemon is not ready: one who may read the metrics.

        On loopback that is anybody until the store was reached. It may have keys, so the metrics are closed until then,
        but the operator who starts the daemon there must see what keeps it from its store.
        """
        if self._is_optional and self._book is not None and not self._book.is_read:
            return True
        try:
            await self.admit(request, Scope.METRICS)
        except (Refused, StoreDown):
            return False
        return True

    def _check(self, entry: KeyEntry, scope: Scope | NoScope, book: KeyBook) -> None:
        """Check what a key allows, and take one task of its rate.

        Raises:
            NotKnown: it has ended.
            NotAllowed: it has not this scope.
            TooOften: its rate is used up.
        """
        key = entry.key
        _check_end(key, book)
        if isinstance(scope, Scope):
            entry.caller.require(scope)
        if key.rate is not None:
            self._take(key, 1)

    async def judge_again(self, caller: Caller) -> None:
        """Judge the key of a caller that was admitted a while ago once more.

        Raises:
            NotKnown: the key was revoked or has ended since, or calls need one now.
            StoreDown: the keys could not be read.
        """
        book = self._book
        if book is None:
            return
        if caller.key_id is None:
            if self.asks_for_keys:
                raise NotKnown(EXPECTED_HEADER, reason="no_key")
        elif self._root is None or caller.key_id not in self._root.keys:
            key = (await book.current()).keys.get(caller.key_id)
            if key is None:
                raise NotKnown(EXPECTED_HEADER, reason=UNKNOWN)
            _check_end(key, book)

    def charge_batch(self, caller: Caller, items: int) -> None:
        """Take the items of a batch from the rate of its key; the request itself was the first.

        Raises:
            TooOften: the key's rate is used up, or the batch is larger than a second's worth.
        """
        if items > 1 and (key := self._limited_key(caller)) is not None:
            self._take(key, items - 1)

    def charge_claimed(self, caller: Caller, tasks: int) -> None:
        """Take tasks that are claimed, or whose leases a call names, from the rate of the caller's key.

        The request itself was the first. However many they are, none is refused, and the next calls wait for them: how
        many are claimed is only known then, and to refuse so many acks each time would let their tasks run again.
        """
        if tasks > 1 and (key := self._limited_key(caller)) is not None:
            self._rate_of(key).spend(tasks - 1)

    def renew_rates(self) -> None:
        """Let each key send at once what its rate allows in a second: a clock has moved on."""
        self._rates.clear()

    def _limited_key(self, caller: Caller) -> ApiKey | None:
        """Return the caller's key if it has a rate."""
        key = None if self._book is None or caller.key_id is None else self._book.latest.keys.get(caller.key_id)
        return None if key is None or key.rate is None else key

    def _take(self, key: ApiKey, tasks: int) -> None:
        wait_s = self._rate_of(key).take(tasks, self._monotonic())
        if wait_s:
            raise TooOften(f"this key may send {key.rate:g} tasks a second, and each item of a batch is one", wait_s)

    def _rate_of(self, key: ApiKey) -> CallRate:
        assert key.rate is not None
        rate = self._rates.get(key.id)
        if rate is None or rate.rate != key.rate:
            if len(self._rates) >= MAX_RATES:
                self._rates.clear()
            rate = self._rates[key.id] = CallRate(key.rate, self._monotonic())
        return rate

    def note_denial(self, request: web.BaseRequest, error: Denied, token: str | None = None) -> None:
        """Count a refusal, and log it unless another one was logged a moment ago. The key itself is never logged.

        `token` is as in `find_caller`.
        """
        self._count_denial(error.reason)
        now_s = self._monotonic()
        if now_s - self._logged_at < LOG_EVERY_S:
            self._not_logged += 1
            return
        text = _sent_key(request.headers.get(_HEADER, "")) if token is None else token
        id = id_in_key(text) if has_key_form(text) else None
        if not text and self._sessions is not None:
            id = key_id_in_session(self._sessions.cookie.find(request) or "")
        log.warning("call denied", reason=error.reason, key=id, peer=request.remote, not_logged=self._not_logged)
        self._logged_at, self._not_logged = now_s, 0


def _check_end(key: ApiKey, book: KeyBook) -> None:
    """Raises NotKnown: the key has ended."""
    if key.has_ended(book.now()):
        raise NotKnown(f"this key ended on {key.end_date}", reason="ended")


def find_token(request: web.BaseRequest) -> str | None:
    """Return the key in the header X-Auth-Token, which OpenStack's clients send, or None if there is none.

    Raises:
        Refused: the request has another key, too.
    """
    tokens = request.headers.getall(_TOKEN_HEADER, ())
    if not tokens:
        return None
    keys = {*tokens, *map(_sent_key, request.headers.getall(_HEADER, ()))} - {""}
    if len(keys) > 1:
        raise Refused("X-Auth-Token and Authorization: expected one key, got two that differ", "X-Auth-Token")
    return keys.pop() if keys else None


def _sent_key(header: str) -> str:
    """Return the key in a header Authorization, of whatever case its scheme is; empty if there is none."""
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _check_form(text: str) -> None:
    """Raises NotKnown: no key was sent, or a mistyped one. The words are the same for one that is not known."""
    if not has_valid_check(text):
        raise NotKnown(EXPECTED_HEADER, reason="mistyped" if text else "no_key")
