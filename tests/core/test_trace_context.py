"""Trace contexts: the header `traceparent` is read as W3C Trace Context says, and written again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from later.core.task import creation_context, headers_of_call, headers_of_claim
from later.core.trace_context import format_traceparent, is_id_sampled, is_sampled, parse_traceparent, sampled_only
from tests.builders import NOW, a_task
from tests.cases import each_case

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
CONTEXT = bytes.fromhex(TRACE_ID + SPAN_ID + "01")
OTHER = f"00-{'c' * 32}-{'d' * 16}-00"


def test_a_context_takes_25_bytes() -> None:
    assert parse_traceparent(SAMPLED) == CONTEXT
    assert len(CONTEXT) == 25


@each_case(
    ("text", "written"),
    [
        (SAMPLED, SAMPLED),
        (f"00-{TRACE_ID}-{SPAN_ID}-00", f"00-{TRACE_ID}-{SPAN_ID}-00"),
        (f"00-{TRACE_ID}-{SPAN_ID}-03", f"00-{TRACE_ID}-{SPAN_ID}-03"),
        (f"00-{TRACE_ID}-{SPAN_ID}-ff", f"00-{TRACE_ID}-{SPAN_ID}-03"),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01", SAMPLED),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-will-be", SAMPLED),
    ],
)
def test_a_context_is_written_as_it_was_read_in_the_version_that_we_know(text: str, written: str) -> None:
    assert format_traceparent(parse_traceparent(text)) == written


@each_case(
    "text",
    [
        "",
        "00",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID}-{SPAN_ID}-01-",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[1:]}-{SPAN_ID}-01",
        f" {SAMPLED}",
        f"{SAMPLED}\n",
        f"0x-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-٠1",
    ],
)
def test_what_is_no_context_is_none(text: str) -> None:
    assert parse_traceparent(text) == b""


@given(st.text())
def test_any_text_is_a_context_or_none(text: str) -> None:
    assert len(parse_traceparent(text)) in (0, 25)


@each_case(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True)])
def test_only_a_sampled_context_is_kept(flags: str, sampled: bool) -> None:
    context = parse_traceparent(f"00-{TRACE_ID}-{SPAN_ID}-{flags}")
    assert is_sampled(context) is sampled
    assert sampled_only(context) == (context if sampled else b"")
    assert sampled_only(b"") == b""


@each_case(
    ("changes", "context"),
    [
        ({}, b""),
        ({"trace_context": CONTEXT}, CONTEXT),
        ({"headers": {"TraceParent": OTHER}, "trace_context": CONTEXT}, parse_traceparent(OTHER)),
        ({"context": {"traceparent": OTHER}, "trace_context": CONTEXT}, parse_traceparent(OTHER)),
        ({"context": {"request": "r-1"}, "trace_context": CONTEXT}, CONTEXT),
        ({"headers": {"traceparent": SAMPLED}, "context": {"traceparent": OTHER}}, CONTEXT),
        ({"headers": {"traceparent": "nonsense"}}, b""),
    ],
)
def test_what_a_task_says_itself_goes_before_what_was_kept(changes: dict[str, Any], context: bytes) -> None:
    assert creation_context(a_task(**changes)) == context


def test_a_receiver_and_a_consumer_get_the_context_that_was_kept() -> None:
    kept = a_task(headers={"X-Own": "1"}, trace_context=CONTEXT)
    assert headers_of_call(kept) == headers_of_claim(kept) == {"X-Own": "1", "traceparent": SAMPLED}


def test_the_own_header_of_a_task_is_not_replaced() -> None:
    task = a_task(headers={"Traceparent": OTHER}, trace_context=CONTEXT)
    assert headers_of_call(task) == headers_of_claim(task) == {"Traceparent": OTHER}


def test_a_claim_shows_the_firing_beside_the_context() -> None:
    headers = headers_of_claim(a_task(scheduled_at=NOW, trace_context=CONTEXT))
    assert headers == {"traceparent": SAMPLED, "later-scheduled": "2027-01-15T08:00:00.000Z"}


def test_the_share_of_sampled_ids_is_none_all_or_about_as_many_and_those_of_a_smaller_share_are_among_them() -> None:
    ids = [f"order-{number}" for number in range(4000)]
    sampled = {share: {id for id in ids if is_id_sampled(id, share)} for share in (0.0, 0.01, 0.5, 1.0)}
    assert (sampled[0.0], sampled[1.0]) == (set(), {*ids})
    assert 10 < len(sampled[0.01]) < 90
    assert 1800 < len(sampled[0.5]) < 2200
    assert sampled[0.01] < sampled[0.5]
