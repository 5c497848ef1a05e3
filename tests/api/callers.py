"""Callers of the API: a daemon whose keys are names, for tests of what a caller may see."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from yarl import URL

from later.api.authorization import Authorization, NoScope
from later.core.api_keys import ALL_SCOPES, Scope
from later.core.caller import ANYBODY, Caller
from later.core.key_set import KeySet
from tests.api.api_fixture import Answer, ApiFixture, read_answer


class NamedCallers(Authorization):
    """Admits each caller that names its namespace as its key, or in hexadecimal digits after a `#`.

    The key `operator` is bound to none.
    """

    def find_caller(
        self, request: web.BaseRequest, scope: Scope | NoScope, known: KeySet | None = None, token: str | None = None
    ) -> Caller:
        key = request.headers.get("Authorization")
        if key is None:
            return ANYBODY
        if key == "operator":
            return Caller(key_id=key, namespace=None, scopes=ALL_SCOPES)
        namespace = bytes.fromhex(key[1:]).decode() if key.startswith("#") else key
        return Caller(key_id="key", namespace=namespace, scopes=ALL_SCOPES)


class Tenant:
    """A caller of the API with a key."""

    def __init__(self, api: ApiFixture, key: str) -> None:
        self._api = api
        self._headers = {"Authorization": key}

    async def post(self, path: str, body: object) -> Answer:
        return await self._api.post(path, body, headers=self._headers)

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        data: dict[str, Any] = {} if body is None else {"json": body}
        url = URL(f"{self._api.http.make_url('/')}{path[1:]}", encoded=True)
        async with self._api.http.session.request(method, url, headers=self._headers, **data) as response:
            return response.status, await read_answer(response)

    async def get(self, path: str) -> Answer:
        return await self.call("GET", path)

    async def send(self, path: str, body: object) -> bytes:
        """POST JSON, and return the whole answer as bytes: its status, its headers and its body."""
        url = URL(f"{self._api.http.make_url('/')}{path[1:]}", encoded=True)
        async with self._api.http.session.post(url, json=body, headers=self._headers) as response:
            head = [f"{name}: {value}" for name, value in response.headers.items() if name != "Date"]
            return "\n".join([str(response.status), *head, ""]).encode() + await response.read()
