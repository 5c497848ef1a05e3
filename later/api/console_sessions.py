"""The console's sessions as requests show them: the cookie, and whether it counts for a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from aiohttp import hdrs, web

from later.core.api_keys import READING_SCOPES
from later.core.caller import Caller
from later.core.console_session import SESSION_MS
from later.store.session_secret import SessionSecret

SAFE_METHODS = (hdrs.METH_GET, hdrs.METH_HEAD)
"""Methods for which the cookie alone is enough: over plain http, browsers send no proof with them."""


class SessionCookie(NamedTuple):
    """The cookie that keeps a session in the browser. No script can read it, and no other site has it sent."""

    name: str
    path: str
    is_secure: bool

    @classmethod
    def of_server(cls, base_path: str, *, is_secure: bool) -> SessionCookie:
        """Return the cookie of a server, which is reached by https if `is_secure`.

        Over https its name has the prefix with which browsers take it from this host by https only, for all paths.
        """
        if is_secure:
            return cls("__Host-later-session", "/", True)
        return cls("later-session", f"{base_path}/", False)

    def find(self, request: web.BaseRequest) -> str | None:
        """Return the value that a request has; of several, the first, which is that of the longest path."""
        header = request.headers.get(hdrs.COOKIE)
        if header is None:
            return None
        match = re.search(rf"(?:^|;) *{re.escape(self.name)}=([^;]*)", header)
        return None if match is None else match[1].strip()

    def set(self, response: web.Response, value: str) -> None:
        self._set(response, value, SESSION_MS // 1000)

    def remove(self, response: web.Response) -> None:
        self._set(response, "", 0)

    def _set(self, response: web.Response, value: str, max_age_s: int) -> None:
        response.set_cookie(
            self.name,
            value,
            path=self.path,
            max_age=max_age_s,
            secure=self.is_secure,
            httponly=True,
            samesite="Strict",
        )


class ConsoleSessions:
    """The sessions of this server's console.

    `is_of_own_page` returns True if the browser proves that one of this server's pages sent a request. With
    `is_read_only`, a session reads only, whatever its key may do.
    """

    def __init__(
        self,
        secret: SessionSecret,
        cookie: SessionCookie,
        *,
        is_of_own_page: Callable[[web.BaseRequest], bool],
        is_read_only: bool = False,
    ) -> None:
        self.secret = secret
        self.cookie = cookie
        self.is_read_only = is_read_only
        self._is_of_own_page = is_of_own_page

    def find(self, request: web.BaseRequest) -> str | None:
        """Return the cookie of a request, if it counts there.

        What changes something must come from one of this server's own pages, and be proven to.
        """
        value = self.cookie.find(request)
        if value and (request.method in SAFE_METHODS or self._is_of_own_page(request)):
            return value
        return None

    def restrict(self, caller: Caller) -> Caller:
        """Return the caller of a session of this caller's key."""
        return replace(caller, scopes=caller.scopes & READING_SCOPES) if self.is_read_only else caller
