"""The routes by which people sign in to the console with a key, and sign out."""

from __future__ import annotations

import msgspec
from aiohttp import web

from later.api.authorization import Authorization
from later.api.console_sessions import SessionCookie
from later.api.json_response import DATA_HEADERS
from later.api.requests import read_body
from later.core.api_keys import EXPECTED_KEY
from later.core.errors import Refused
from later.core.json_body import body_parser

MAX_SIGN_IN_BYTES = 1024
MAX_KEY_CHARS = 200


class SignInRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a sign-in."""

    key: str | None = None


_parse = body_parser(SignInRequest, {"key": EXPECTED_KEY})


class SignInHandlers:
    """Handlers of `/console/session`. They are open: to sign in is what makes a caller known."""

    def __init__(self, authorization: Authorization, cookie: SessionCookie) -> None:
        self._authorization = authorization
        self._cookie = cookie

    async def sign_in(self, request: web.Request) -> web.StreamResponse:
        """`POST /console/session`: exchange a key for the cookie of a session.

        Raises:
            Refused: the body is wrong, or no key is asked for here.
            NotKnown: the key is unknown or has ended.
            StoreDown: the keys cannot be read.
        """
        body = _parse(await read_body(request, MAX_SIGN_IN_BYTES))
        if body.key is None or not 0 < len(body.key) <= MAX_KEY_CHARS:
            raise Refused(f"key: expected {EXPECTED_KEY}", "key")
        session = await self._authorization.sign_in(body.key.strip())
        response = web.Response(status=204, headers=DATA_HEADERS)
        self._cookie.set(response, session)
        return response

    async def sign_out(self, request: web.Request) -> web.StreamResponse:
        """`DELETE /console/session`: let the browser forget the session."""
        response = web.Response(status=204, headers=DATA_HEADERS)
        self._cookie.remove(response)
        return response
