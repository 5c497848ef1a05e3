"""The smallest possible delivery: what aiohttp's client alone needs for requests like later's."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime

import aiohttp
import msgspec
import uvloop
from yarl import URL

HEADERS = {"Content-Type": "application/json", "User-Agent": "later/0.0.0", "Accept-Encoding": "identity"}
Call = tuple[bytes, dict[str, str]]


def build_calls(count: int, at: float) -> list[Call]:
    """Return the body and headers of each call, built before the measurement."""
    due = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    task = {
        "later-due": due,
        "later-created": due,
        "later-timeout": "15",
        "later-failures": "0",
        "later-max-retry": "3",
    }
    calls: list[Call] = []
    for _ in range(count):
        id = str(uuid.uuid4())
        headers = {"webhook-id": id, "webhook-timestamp": str(int(at)), "later-attempt": "1"} | task
        calls.append((msgspec.json.encode({"id": id, "topic": "order", "content": "hello"}), headers))
    return calls


async def post_all(url: str, count: int, at: float, connections: int) -> None:
    """Post `count` calls from `at` (Unix seconds) on, over so many connections, and read each answer."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        headers=HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
    ) as session:
        remaining = iter(build_calls(count, at))
        await asyncio.sleep(at - time.time())
        await asyncio.gather(*(_post_until_empty(session, URL(url), remaining) for _ in range(connections)))


async def _post_until_empty(session: aiohttp.ClientSession, url: URL, remaining: Iterator[Call]) -> None:
    for body, headers in remaining:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            await response.read()


def run_poster(post_all: Callable[[str, int, float, int], Coroutine[None, None, None]]) -> None:
    """Run a loop of posts as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("posts", type=int)
    parser.add_argument("at", type=float, help="when to begin: Unix seconds")
    parser.add_argument("connections", type=int)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(post_all(options.url, options.posts, options.at, options.connections))


if __name__ == "__main__":
    run_poster(post_all)
