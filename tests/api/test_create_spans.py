"""Spans of creates: one for each request that creates tasks, which these keep as their context."""

from __future__ import annotations

import json
from typing import Any

from later.core.policy import Deliver, Policy
from later.core.task import decode_task
from tests.api.api_fixture import MINIMAL, ApiFixture, serve_api
from tests.cases import each_case
from tests.tracing.recorded_spans import CALLER, UNSAMPLED, RecordedSpans, ids_of

OWN = f"00-{'c' * 32}-{'d' * 16}-01"
WITH_CALLER = {"traceparent": CALLER}
SECRETS = ("canary-content", "canary-header", "canary-query", "canary-context", "canary-refused")


async def kept(api: ApiFixture) -> list[str]:
    """Return the contexts that the tasks in the store have kept, in the order of their contents."""
    bodies: Any = await api.redis.hvals("{later:0}:pool")
    tasks = sorted((decode_task("an-id", body) for body in bodies), key=lambda task: task.content)
    return [ids_of(task.trace_context) if task.trace_context else "" for task in tasks]


@each_case("body", [MINIMAL, {**MINIMAL, "id": "a", "if_exists": "update"}])
async def test_a_task_keeps_the_span_of_its_create_which_belongs_to_its_caller(body: dict[str, Any]) -> None:
    spans = RecordedSpans()
    async with serve_api(keeps_trace_context=True, span_recorder=spans.recorder) as api:
        status, answer = await api.post("/create", body, headers=WITH_CALLER)
        [span] = spans.ended
        assert (status, span.attributes["messaging.message.id"]) == (200, answer["id"])
        assert (span.name, span.parent, span.status) == ("create order", ids_of(CALLER), "UNSET")
        assert await kept(api) == [span.context]


async def test_where_nothing_is_kept_the_span_is_made_all_the_same() -> None:
    spans = RecordedSpans()
    async with serve_api(span_recorder=spans.recorder) as api:
        await api.post("/create", MINIMAL, headers=WITH_CALLER)
        assert ([span.parent for span in spans.ended], await kept(api)) == ([ids_of(CALLER)], [""])


async def test_a_caller_that_is_not_sampled_gets_no_span() -> None:
    spans = RecordedSpans()
    async with serve_api(keeps_trace_context=True, span_recorder=spans.recorder) as api:
        await api.post("/create", MINIMAL, headers={"traceparent": UNSAMPLED})
        assert (spans.ended, await kept(api)) == ([], [""])


async def test_a_batch_has_one_span_which_its_items_keep_unless_they_name_their_own_context() -> None:
    spans = RecordedSpans()
    items = [
        {**MINIMAL, "content": "1"},
        {**MINIMAL, "content": "2", "headers": {"traceparent": OWN}},
        {**MINIMAL, "content": "3", "id": "c", "if_exists": "update"},
        {**MINIMAL, "content": "4", "topic": ""},
    ]
    async with serve_api(keeps_trace_context=True, span_recorder=spans.recorder) as api:
        status, answer = await api.post("/create/batch", items, headers=WITH_CALLER)
        assert (status, answer["created"], answer["refused"]) == (200, 3, 1)
        [span] = spans.ended
        assert (span.name, span.parent, span.status) == ("create order", ids_of(CALLER), "UNSET")
        assert span.attributes["messaging.batch.message_count"] == 3
        assert await kept(api) == [span.context, "", span.context]


@each_case(("path", "body"), [("/create", {**MINIMAL, "topic": ""}), ("/create/batch?dry_run=true", [MINIMAL])])
async def test_what_creates_nothing_has_no_span(path: str, body: Any) -> None:
    spans = RecordedSpans()
    async with serve_api(span_recorder=spans.recorder) as api:
        await api.post(path, body, headers=WITH_CALLER)
        assert spans.ended == []


@each_case(("path", "body"), [("/create", MINIMAL), ("/create/batch", [MINIMAL])])
async def test_a_create_that_the_store_does_not_take_is_an_error(path: str, body: Any) -> None:
    spans = RecordedSpans()
    async with serve_api(span_recorder=spans.recorder) as api:
        await api.lose_store()
        answer = await api.http.post(path, json=body)
        assert answer.status == 503
        assert [span.status for span in spans.ended] == ["ERROR"]


async def test_no_span_says_what_may_be_secret() -> None:
    content, header, query, context, refused = SECRETS
    task = {
        **MINIMAL,
        "callback": f"http://127.0.0.1:8888/success?q={query}",
        "content": content,
        "headers": {"Authorization": header},
        "context": {"tenant": context},
    }
    spans = RecordedSpans()
    headers = {"Authorization": f"Bearer {header}", "baggage": header, "tracestate": f"v={header}"}
    async with serve_api(span_recorder=spans.recorder) as api:
        await api.post("/create", task, headers=headers)
        await api.post("/create/batch", [task, {**task, "callback": refused}], headers=headers)
    texts = json.dumps([span.text for span in spans.ended])
    assert len(spans.ended) == 2
    assert [secret for secret in SECRETS if secret in texts] == []


async def test_a_task_that_a_consumer_will_claim_keeps_the_span_too() -> None:
    spans = RecordedSpans()
    policy = Policy(deliver=Deliver.PULL)
    async with serve_api(keeps_trace_context=True, span_recorder=spans.recorder, policy=policy) as api:
        await api.post("/create", {"topic": "jobs"}, headers=WITH_CALLER)
        assert [span.context for span in spans.ended] == await kept(api)
