"""The command `healthy`: whether the daemon on this machine, or in this container, works."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from contextlib import closing
from typing import Final

import click

from later.address_types import Address
from later.cli.options import config_options, examples
from later.config import Config, load
from later.core.errors import CallFailed

TIMEOUT_S: Final = 2.0
"""How long each daemon may take. One whose ticker seems to hang takes half a second to be sure."""
MAX_ANSWER: Final = 10_000
"""Bytes of an answer that are read."""
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address at which a daemon that listens on all addresses is asked."""


@click.command(
    epilog=examples(
        "later healthy",
        "later healthy --health off",
        about="The exit status is 0 if it works, and 1 if not, so it can be the health check of a container.",
    )
)
@config_options("healthy")
def healthy(**flags: str | None) -> int:
    """Say whether the daemon that runs here works.

    Requests /livez at the addresses of --listen (of an API) and --health (of a worker). At least one must answer, and
    none may say that a restart would help. An address at which nothing listens is passed over: a container runs one of
    them. A store that is away makes no daemon unhealthy. No key is needed.
    """
    config = load("healthy", flags, os.environ)
    addresses = [address for address in (config.listen, config.health) if address is not None]
    asked = [url for url in (_ask(address, config) for address in addresses) if url is not None]
    if not asked:
        raise CallFailed(f"no daemon listens at {' or '.join(map(str, addresses))}")
    click.echo(f"healthy: {', '.join(asked)}")
    return 0


def _ask(address: Address, config: Config) -> str | None:
    """Return the URL at which a daemon says that it works; None if nothing listens there.

    Raises:
        CallFailed: it does not work, or does not answer.
    """
    host = LOOPBACK_OF.get(address.host, address.host)
    asked = Address(host, address.port)
    url = f"{'http' if config.tls_cert is None else 'https'}://{asked}/livez"
    with closing(_connect(asked, tls=config.tls_cert is not None)) as connection:
        try:
            connection.request("GET", "/livez")
            response = connection.getresponse()
            body = response.read(MAX_ANSWER)
        except ConnectionRefusedError:
            return None
        except (OSError, http.client.HTTPException) as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise CallFailed(f"{url}: {reason}") from None
    if response.status != 200:
        raise CallFailed(f"{url} answered {response.status}: {_detail(body) or response.reason}")
    return url


def _connect(address: Address, *, tls: bool) -> http.client.HTTPConnection:
    """Return a connection that is made with the request. A daemon's certificate is for another name than this."""
    if not tls:
        return http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(address.host, address.port, timeout=TIMEOUT_S, context=context)


def _detail(body: bytes) -> str | None:
    """Return the reason in an answer (RFC 9457), if it has one."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    detail = answer.get("detail") if isinstance(answer, dict) else None
    return detail if isinstance(detail, str) else None
