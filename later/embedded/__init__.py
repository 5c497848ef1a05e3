"""The embedded store: a Valkey server from a wheel, for running `later` without an external Redis."""

from later.embedded.paths import DirectoryInUse, EmbeddedError, holds_store, socket_url
from later.embedded.probe import answers_ping
from later.embedded.server import find_server
from later.embedded.store import EmbeddedStore

__all__ = [
    "DirectoryInUse",
    "EmbeddedError",
    "EmbeddedStore",
    "answers_ping",
    "find_server",
    "holds_store",
    "socket_url",
]
