"""The errors of listening on an address, and what is logged about it."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import structlog

from later.address_types import Address
from later.config import Config
from later.core.errors import LaterError

log = structlog.get_logger("later.daemon")


def may_skip_listening(config: Config, error: OSError) -> bool:
    """Return True for a worker whose default health address is in use: it delivers all the same. An API must exit."""
    return not config.runs_api and not config.health_given and error.errno == errno.EADDRINUSE


def listen_error(address: Address, error: OSError) -> LaterError:
    return LaterError(f"cannot listen on {address}: {error.strerror or error}; choose another")


def no_keys_error(address: Address) -> LaterError:
    """Return the error of a daemon that others could reach, and no caller could use."""
    return LaterError(
        f'cannot listen on {address} without keys: make one with "later keys create --scopes admin", '
        "or set LATER_ROOT_KEY, or say --auth off"
    )


def log_not_listening(address: Address) -> None:
    log.warning("health address in use: going on without; --health names another", address=str(address))


def log_listening(address: Address, bound: Sequence[Address], config: Config) -> None:
    """Log each numeric address that `address` was bound to; nothing if the command goes on without listening.

    Without keys, callers from elsewhere may use some names only, so it is said which are allowed.
    """
    for numeric in bound:
        url = f"{'http' if config.tls_cert is None else 'https'}://{numeric}"
        log.info("listening", url=url)
        if config.console_mode != "off":
            log.info("console", url=f"{url}{config.base_path}/console/", mode=config.console_mode)
    if not bound or address.is_loopback:
        return
    if config.tls_cert is None and not config.behind_proxy:
        log.warning("keys and tasks travel in clear: --tls-cert encrypts them; --behind-proxy says a proxy does")
    if config.auth == "off":
        log.warning("listening beyond this machine: anyone who reaches this port can make calls", address=str(address))
        hosts = ", ".join(sorted({"localhost", address.host, *config.allow_hosts}))
        if config.console != "off":
            log.warning("no console beyond this machine: it needs keys, and --auth off asks for none")
        log.info("other host names are refused: --allow-host allows one", hosts=hosts)


def log_clock(bound: Sequence[Address], config: Config) -> None:
    """Log how the clock of `later dev` is moved."""
    for numeric in bound:
        url = f"{'http' if config.tls_cert is None else 'https'}://{numeric}"
        log.info("the clock can be moved", command=f"later dev advance 30d --url {url}", route=f"POST {url}/dev/clock")
