"""The API with keys in its store, and calls of it with them."""

from __future__ import annotations

from typing import Any

from yarl import URL

from later.api.authorization import Authorization
from later.api.console_sessions import ConsoleSessions, SessionCookie
from later.api.cross_site import CrossSiteProtection
from later.core.api_keys import ApiKey, Scope, id_in_key, key_digest, make_key_text, root_key
from later.metrics import Metrics
from later.store.key_book import KeyBook
from later.store.open import Store
from later.store.session_secret import SessionSecret
from later.store.shared_read import FRESH_S
from tests.api.api_fixture import COOKIE, ApiFixture, serve_api


class Seconds:
    """The monotonic time of the key book, which passes only when a test sets it."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class KeyedApi:
    """The API with keys, and calls of it."""

    def __init__(self, api: ApiFixture, book: KeyBook, root: str, seconds: Seconds) -> None:
        self.api, self.book, self.root, self.seconds = api, book, root, seconds

    async def add_key(
        self, *scopes: Scope, namespace: str | None = None, rate: float | None = None, expires_at: int | None = None
    ) -> str:
        """Put a key into the store, as `later keys create` does, wait until the API knows it, and return it."""
        text = make_key_text()
        key = ApiKey(
            id=id_in_key(text), digest=key_digest(text), name="", namespace=namespace, scopes=frozenset(scopes),
            created_at=0, expires_at=expires_at, rate=rate,
        )  # fmt: skip
        await self.book.change(lambda known, now: {key.id: key})
        self.seconds.at += FRESH_S
        return text

    async def revoke(self, text: str) -> None:
        await self.book.change(lambda known, now: {id_in_key(text): None})
        self.seconds.at += FRESH_S

    async def call(
        self, method: str, path: str, key: str | None = None, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Return the status, the body and the headers of an answer."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        url = URL(f"{self.api.http.make_url('/')}{path[1:]}", encoded=True)
        async with self.api.http.session.request(
            method, url, json={} if body is None and method != "GET" else body, headers=headers
        ) as answer:
            is_json = "json" in answer.headers.get("Content-Type", "")
            return answer.status, await answer.json(content_type=None) if is_json else None, {**answer.headers}


def keyed(
    root: str,
    seconds: Seconds,
    *,
    is_optional: bool = False,
    cookie: SessionCookie = COOKIE,
    console: str = "on",
    grace_s: float = 0.0,
    **served: Any,
) -> Any:
    """Serve the API with keys, and with a root key if it is not empty."""
    protection = served.setdefault("cross_site_protection", CrossSiteProtection())

    def authorize(store: Store, metrics: Metrics) -> Authorization:
        return Authorization(
            KeyBook(store.client, store.keys, seconds, grace_s=grace_s),
            root_key=root_key(root) if root else None,
            is_optional=is_optional,
            sessions=ConsoleSessions(
                SessionSecret(store.client, store.keys, seconds, grace_s),
                cookie,
                is_of_own_page=protection.is_of_own_page,
                is_read_only=console == "readonly",
            ),
            count_denial=metrics.count_denial,
            monotonic=seconds,
        )

    return serve_api(authorization=authorize, cookie=cookie, console=console, **served)
