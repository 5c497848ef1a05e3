"""Calls of Zaqar's API as its clients make them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

from yarl import URL

from tests.api.api_fixture import ApiFixture

CLIENT_ID = UUID("3381af92-2b9e-11e3-b191-71861300734c")
OTHER_CLIENT_ID = UUID("5f0c6b1e-7d3a-4f6b-9a1d-2c3b4a5d6e7f")
PROJECT = "480924"


class ZaqarAnswer(NamedTuple):
    """The status of an answer, its body (None if it is empty) and its headers."""

    status: int
    body: Any
    headers: dict[str, str]


class ZaqarApi:
    """The API, called by one client for one project."""

    def __init__(self, api: ApiFixture, *, project: str = PROJECT, client_id: UUID = CLIENT_ID) -> None:
        self.api = api
        self.project = project
        self.headers = {"Client-ID": client_id.hex, "X-Project-Id": project, "Content-Type": "application/json"}

    async def call(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str | None] | None = None
    ) -> ZaqarAnswer:
        """Send a request with a JSON body, bytes as they are, or none. A header that is None is not sent."""
        sent = {name: value for name, value in {**self.headers, **(headers or {})}.items() if value is not None}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        url = URL(f"{self.api.http.make_url('/')}{path[1:]}", encoded=True)
        session = self.api.http.session
        async with session.request(
            method, url, data=data, headers=sent, skip_auto_headers=["Content-Type"], allow_redirects=False
        ) as answer:
            text = await answer.read()
            if text and method != "HEAD":
                assert answer.headers["Content-Type"] in ("application/json", "application/json-home")
            if answer.status >= 400 and text:
                assert json.loads(text).keys() == {"title", "description"}
            return ZaqarAnswer(answer.status, json.loads(text) if text else None, {**answer.headers})

    async def error(self, method: str, path: str, body: object = None, **options: Any) -> tuple[int, str, str]:
        """Return the status, title and description of a request that is refused."""
        answer = await self.call(method, path, body, **options)
        return answer.status, answer.body["title"], answer.body["description"]
