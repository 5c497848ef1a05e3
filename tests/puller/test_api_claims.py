"""Claims over the API itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from later.client import AsyncClient
from later.core.clock import Clock
from later.core.retry import Outcome, OutcomeKind
from later.puller.claim_source import ApiClaims
from tests.cases import each_case
from tests.client.api_servers import ApiServer, api_server


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with api_server(clock=Clock(time.monotonic, time.time)) as server:
        yield server


@each_case(
    "outcome, message",
    [
        (Outcome(kind=OutcomeKind.FAILED, reason="raised", message="x" * 10_000), "x" * 500),
        (Outcome(kind=OutcomeKind.FAILED, reason="raised", message="no file \udcff"), "no file ?"),
        (Outcome(kind=OutcomeKind.BUSY, reason="busy", message="full", later_after_ms=10**15), "full"),
        (Outcome(kind=OutcomeKind.GONE, reason="dead", message="no such order"), "no such order"),
    ],
)
async def test_every_outcome_is_one_that_the_daemon_takes(api: ApiServer, outcome: Outcome, message: str) -> None:
    async with AsyncClient(api.url) as client:
        await client.set_policy("outcomes", {"deliver": "pull"})
        id = (await client.create("outcomes")).id
        claims = ApiClaims(client, lambda: None)
        [claim] = await claims.claim(["outcomes"], 1, 20)
        assert await claims.settle(claim.lease, outcome)
        last_error = (await client.query(id)).last_error
    assert last_error is not None
    assert last_error.message == message


async def test_a_claim_that_is_cancelled_when_it_is_answered_gives_its_leases_back(api: ApiServer) -> None:
    async with AsyncClient(api.url) as client:
        await client.set_policy("cancelled", {"deliver": "pull"})
        id = (await client.create("cancelled")).id
        answered, claim = asyncio.Event(), client.claim

        async def answer(*arguments: Any, **options: Any) -> Any:
            tasks = await claim(*arguments, **options)
            answered.set()
            await asyncio.sleep(0)
            return tasks

        client.claim = answer  # type: ignore[method-assign]  # it says when the daemon has answered
        claiming = asyncio.create_task(ApiClaims(client, lambda: None).claim(["cancelled"], 1, 20))
        await answered.wait()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        assert (await client.query(id)).state == "delay"
