"""The sender of one process, as the options say, and the descriptors that its connections may take."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

from later import __version__
from later.config import Config
from later.core.address_guard import AddressGuard
from later.core.signing import KeyRing
from later.daemon.certificates import read_client_tls
from later.delivery.aiohttp_client import AiohttpClient
from later.delivery.client_settings import ClientSettings
from later.delivery.own_client import OwnClient
from later.delivery.pool import idle_limit
from later.delivery.proxy import Proxy
from later.delivery.refusals import RefusalReport
from later.delivery.sender import Sender
from later.delivery.signer import Signer
from later.metrics import Metrics


def raise_descriptor_limit() -> int:
    """Raise the number of descriptors that this process may have to what it may be, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS reports a limit that it does not grant
            return soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def build_sender(
    config: Config,
    guard: AddressGuard,
    metrics: Metrics,
    descriptors: int,
    *,
    key_ring: Callable[[], KeyRing],
    moved_ms: Callable[[], int],
) -> Sender:
    """Return the sender with the HTTP client, and through the proxy, that the options say. It signs by `key_ring()`.

    `moved_ms` returns how far the store's time is ahead of that of receivers.
    """
    tls = read_client_tls(config.ca, config.receivers) if config.runs_worker else None
    proxy = None if config.proxy is None else Proxy.parse(config.proxy)
    max_idle = idle_limit(descriptors, config.concurrency)
    settings = ClientSettings(max_lookups=config.concurrency, max_idle=max_idle, guard=guard, proxy=proxy, tls=tls)
    build_client = AiohttpClient if config.http_client == "aiohttp" else OwnClient
    return Sender(
        build_client(settings),
        Signer(key_ring),
        user_agent=f"later/{__version__}",
        guard=guard,
        refusals=RefusalReport(lambda why: metrics.callbacks_refused.labels(why).inc()),
        has_proxy=proxy is not None,
        moved_ms=moved_ms,
    )
