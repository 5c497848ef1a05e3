"""The connections of the async client in one event loop, by aiohttp: imported with the first call only."""

from __future__ import annotations

import os
import warnings
from typing import Any

import aiohttp
from aiohttp import hdrs

from later import __version__
from later.client.call import Call
from later.client.connection_settings import ConnectionSettings
from later.client.http import ApiReply, build_tls_context
from later.core.errors import CallFailed, Unavailable

IDLE_S = 15.0
"""How long an idle connection is kept: less than the daemon keeps it, which would otherwise close one that is used."""


class _Connector(aiohttp.TCPConnector):
    """A connector that does nothing at its end in a child of the process: that would end the parent's connections."""

    _pid = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._pid = os.getpid()

    def __del__(self, _warnings: Any = warnings) -> None:
        if self._pid == os.getpid():
            super().__del__(_warnings)


class AioSession:
    """Sends the calls of one event loop. Make it where that loop runs."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Raises ConfigError: the file of authorities cannot be read."""
        self._url = settings.url
        headers = {hdrs.USER_AGENT: f"later/{__version__}"}
        if settings.key is not None:
            headers[hdrs.AUTHORIZATION] = f"Bearer {settings.key}"
        context = build_tls_context(settings.ca) if settings.url.lower().startswith("https:") else True
        self._session = aiohttp.ClientSession(
            connector=_Connector(ssl=context, keepalive_timeout=IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            trust_env=False,
        )

    async def exchange(self, call: Call[Any], timeout_s: float) -> ApiReply:
        """Send a call, and return whatever is answered within `timeout_s`.

        Raises:
            Unavailable: no answer came. It is `unknown` whether the call was carried out, unless nothing was sent.
            CallFailed: the server's certificate is not trusted.
        """
        headers = None if call.body is None else {hdrs.CONTENT_TYPE: call.content_type}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                call.method,
                self._url + call.path,
                data=call.body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                retry_after = response.headers.get(hdrs.RETRY_AFTER)
                return ApiReply(response.status, response.reason or "", retry_after, body)
        except aiohttp.ClientConnectorCertificateError as error:
            raise CallFailed(f"the certificate of {self._url} was refused: {error.certificate_error}") from None
        except aiohttp.ClientConnectorError as error:
            cause = error.os_error.strerror or str(error.os_error)
            raise Unavailable(f"{self._url} did not answer: {cause}") from error
        except TimeoutError:
            raise Unavailable(f"{self._url} did not answer within {timeout_s:g} s", unknown=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(
                f"{self._url} did not answer: {str(error) or type(error).__name__}", unknown=True
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    def abandon(self) -> None:
        """Leave the connections to the parent of this process."""
        self._session.detach()
