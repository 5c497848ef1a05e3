"""Log output: one JSON object a line for machines, a line for people, and never a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from later.core.audit_event import AUDIT_LOGGER
from later.log import HIDDEN, bare_url, setup
from tests.cases import each_case


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class FullDisk(io.StringIO):
    """A stream that cannot be written."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Restore the logging of the other tests."""
    loggers = (logging.getLogger(), logging.getLogger(AUDIT_LOGGER))
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    configuration = structlog.get_config()
    yield
    structlog.configure(**configuration)
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


def logger(stream: io.StringIO, format: str = "json", level: str = "info") -> Any:
    setup(format, level, stream)
    return structlog.get_logger("later.test")


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_is_one_object_a_line_with_level_event_and_utc_time() -> None:
    stream = io.StringIO()
    logger(stream).info("delivery failed", id="a\nb", attempt=2)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "delivery failed", "level": "info", "id": "a\nb", "attempt": 2}


def test_events_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    log = logger(stream, level="warning")
    log.debug("no")
    log.info("no")
    log.warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_events_of_one_of_several_processes_carry_its_number() -> None:
    stream = io.StringIO()
    setup("json", "info", stream, process=2)
    structlog.get_logger("later.test").info("hello")
    logging.getLogger("asyncio").warning("slow")
    assert [(line["event"], line["process"]) for line in lines(stream)] == [("hello", 2), ("slow", 2)]


def test_an_exception_is_text_in_one_line_without_local_variables() -> None:
    stream = io.StringIO()
    log = logger(stream)
    try:
        content = "the " + "secret"
        raise ValueError(f"{len(content)} bytes for redis://me:hunter2@host/0")
    except ValueError:
        log.exception("task failed")
    (line,) = lines(stream)
    assert "ValueError: 10 bytes for redis://host/0" in line["exception"]
    assert "the secret" not in line["exception"]


@each_case("format", ["json", "console"])
def test_contents_headers_bodies_passwords_and_queries_are_never_written(format: str) -> None:
    stream = io.StringIO()
    log = logger(stream, format)
    log.info(
        "task http://a/?hunter2",
        content="hunter2",
        headers={"X": "hunter2"},
        body=b"hunter2",
        redis_password="hunter2",
        Authorization="hunter2",
        callback="https://me:hunter2@a.example/p?hunter2#hunter2",
        nested=[{"content": "hunter2", "url": "http://a/?hunter2"}],
        error=OSError("http://a/?hunter2 is down"),
    )
    log.error("x", exc_info=ValueError("http://a/?hunter2"))
    logging.getLogger("aiohttp.server").error("bad request %s", "http://a/?hunter2")
    assert "hunter2" not in stream.getvalue()
    assert HIDDEN in stream.getvalue()
    assert "https://a.example/p" in stream.getvalue()


def test_warnings_of_libraries_are_written_in_the_same_format() -> None:
    stream = io.StringIO()
    logger(stream, level="debug")
    logging.getLogger("aiohttp.access").info("no")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("slow callback", "warning", "asyncio")


def test_libraries_obey_a_higher_level() -> None:
    stream = io.StringIO()
    logger(stream, level="error")
    logging.getLogger("asyncio").warning("no")
    assert not stream.getvalue()


def test_only_a_terminal_gets_colours() -> None:
    plain, terminal = io.StringIO(), Terminal()
    logger(plain, "console").info("hello", id=1)
    logger(terminal, "console").info("hello", id=1)
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[" in terminal.getvalue()
    assert "[info     ] hello" in plain.getvalue()


def test_control_characters_of_others_are_escaped() -> None:
    stream = io.StringIO()
    log = logger(stream, "console")
    log.info("reply", message="a\x1b[2Jb\r\nc")
    log.error("reply", exc_info=ValueError("a\x1b[2Jb"))
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_log_that_cannot_be_written_raises_nothing() -> None:
    log = logger(FullDisk())
    log.info("lost")
    logging.getLogger("asyncio").warning("lost too")


@each_case(
    ("url", "bare"),
    [
        ("http://a:1/b?c=d", "http://a:1/b"),
        ("http://u:p@a/@b#c", "http://a/@b"),
        ("http://a?x=u@b", "http://a"),
        ("redis://:p@[::1]:6379/0", "redis://[::1]:6379/0"),
        ("unix:///tmp/store.sock", "unix:///tmp/store.sock"),
    ],
)
def test_a_bare_url_has_no_credentials_query_or_fragment(url: str, bare: str) -> None:
    assert bare_url(url) == bare


def test_audit_events_are_json_whatever_the_format_and_the_level_and_hold_no_secret() -> None:
    stream = io.StringIO()
    setup("console", "error", stream, process=2)
    event = {"event": "key made", "key": "cli:ann", "secret": "whsec_x", "after": {"callback": "http://u:p@h/x?k=1"}}
    logging.getLogger(AUDIT_LOGGER).info(event)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        **event, "logger": "later.audit", "level": "info", "process": 2, "secret": HIDDEN,
        "after": {"callback": "http://h/x"},
    }  # fmt: skip
