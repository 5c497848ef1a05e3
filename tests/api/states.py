"""Tasks in each state, stored without an API call. The id is the state; a dead task died a minute ago."""

from __future__ import annotations

from typing import Any

from later.core.retry import Failure, SettleTarget, Verdict
from later.store.types import ClaimRequest, Settlement
from tests.api.api_fixture import ApiFixture
from tests.builders import NOW, a_task

STATES = ["delay", "unack", "error", "dead"]
FAILURE = Failure(1, "status", 503, "answered 503", NOW - 60_000, None, 1)
LAST_FAILURE = Failure(1, "exhausted", 503, "1 failure: answered 503", NOW - 60_000, None, 1)
DIED_AT = NOW - 60_000


async def put_task(
    api: ApiFixture, state: str, id: str | None = None, failure: Failure | None = None, **changes: Any
) -> str:
    """Store a task in this state and return its id. It is due in a minute, or its lease or pause ends in 30 s."""
    id = id or state
    created_at = NOW - 120_000
    await api.store.tasks.create(
        [
            a_task(
                **{
                    "id": id,
                    "own_id": True,
                    "created_at": created_at,
                    "delay": 180 if state == "delay" else 0,
                    **changes,
                }
            )
        ]
    )
    if state == "delay":
        return id
    request = ClaimRequest(changes.get("topic", "order"), api.keys.shard_of(id).index, 1)
    [answer] = await api.store.tasks.claim([request], NOW - 120_000, NOW + 30_000)
    assert not isinstance(answer, Exception)
    verdicts = {
        "error": Verdict(SettleTarget.ERROR, NOW + 30_000, failure or FAILURE),
        "dead": Verdict(SettleTarget.DEAD, DIED_AT, failure or LAST_FAILURE),
    }
    if state in verdicts:
        await api.store.tasks.settle([Settlement(answer.claims[0], verdicts[state], None)])
    return id


async def put_all_states(api: ApiFixture, **changes: Any) -> None:
    for state in STATES:
        await put_task(api, state, **changes)
