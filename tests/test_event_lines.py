"""Lines of frequent events: as structlog's, but written together."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re

import pytest
import structlog

from later import log
from later.event_lines import EVENT_LINES, FLUSH_AFTER_S, EventLines

FIELDS = {"method": "POST", "route": "/create", "status": 200, "ms": 1.5, "peer": "127.0.0.1"}


def configured(format: str, level: str = "info", process: int | None = None) -> tuple[EventLines, io.StringIO]:
    lines, stream = EventLines(), io.StringIO()
    lines.configure(stream, format, level, process)
    return lines, stream


async def test_events_are_written_together_a_moment_later() -> None:
    lines, stream = configured("json", process=2)
    lines.add(logging.INFO, "request", FIELDS)
    lines.add(logging.WARNING, "request", {**FIELDS, "status": 503})
    assert stream.getvalue() == ""
    await asyncio.sleep(2 * FLUSH_AFTER_S)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("timestamp"))
    assert first == {**FIELDS, "event": "request", "level": "info", "process": 2}
    assert (second["status"], second["level"]) == (503, "warning")
    lines.add(logging.INFO, "request", FIELDS)
    await asyncio.sleep(2 * FLUSH_AFTER_S)
    assert len(stream.getvalue().splitlines()) == 3


async def test_a_level_below_the_configured_one_is_left_out() -> None:
    lines, stream = configured("json", "warning")
    lines.add(logging.INFO, "request", FIELDS)
    lines.add(logging.WARNING, "request", FIELDS)
    lines.flush()
    assert len(stream.getvalue().splitlines()) == 1


async def test_without_a_stream_nothing_is_kept() -> None:
    lines = EventLines()
    lines.add(logging.INFO, "request", FIELDS)
    lines.flush()
    assert lines._waiting == []


@pytest.mark.parametrize("format", ["json", "console"])
async def test_a_line_looks_like_one_of_structlog(format: str) -> None:
    before, stream = structlog.get_config(), io.StringIO()
    try:
        log.setup(format, "info", stream)
        structlog.get_logger().info("request", **FIELDS)
        EVENT_LINES.add(logging.INFO, "request", FIELDS)
        EVENT_LINES.flush()
    finally:
        structlog.configure(**before)
    ours, theirs = (re.sub(r"\d\d:\d\d:\d\d[.\d]*", "TIME", line) for line in stream.getvalue().splitlines())
    if format == "json":
        assert json.loads(ours) == json.loads(theirs)
    else:
        assert ours.split() == theirs.split()
        assert ours.index("method=") == theirs.index("method=")
