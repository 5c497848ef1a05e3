"""The API with its console, as a daemon serves it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from later.daemon.http_server import console_routes
from tests.api.api_fixture import ApiFixture, serve_api


def serve_console(**options: Any) -> AbstractAsyncContextManager[ApiFixture]:
    """Serve the API and the console on an empty store. The options are those of `serve_api`."""
    return serve_api(pages=console_routes(), **options)
