"""The address that requests come in by: which it is, and what is said of it."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import structlog

from later.config import API, Config
from later.core.errors import LaterError
from later.option_types import Address

log = structlog.get_logger("later.daemon")


def listen_address(command: str, config: Config) -> Address | None:
    """Where the command answers requests: the API's address, or a worker's for its health."""
    return config.listen if command in API else config.health


def may_skip_listening(command: str, config: Config, error: OSError) -> bool:
    """Is this a worker whose default address is another's? It delivers all the same; an API could only leave."""
    return command not in API and not config.health_given and error.errno == errno.EADDRINUSE


def log_not_listening(address: Address) -> None:
    log.warning("health address in use: going on without; --health names another", address=str(address))


def listen_error(address: Address, error: OSError) -> LaterError:
    return LaterError(f"cannot listen on {address}: {error.strerror or error}; choose another")


def log_listening(address: Address, bound: Sequence[Address]) -> None:
    """`bound` is what the address came to: a port for port 0, several for a name; nothing where it is done without."""
    for place in bound:
        log.info("listening", url=f"http://{place}")
    if bound and not address.is_loopback:
        log.warning("listening beyond this machine: whoever reaches this port may make calls", address=str(address))
