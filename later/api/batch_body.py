"""A batch's body into its items, so that one bad item spoils no other."""

from __future__ import annotations

import io
import json
import re
from itertools import islice

import msgspec

from later.core.errors import Refused, TooLarge

MAX_ITEMS = 10_000
NDJSON = "application/x-ndjson"
MANY_COMMAS = 500_000
"""An array with fewer has at most so many items, few enough to be held before they are counted."""

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_scan = json.JSONDecoder(parse_int=float).raw_decode  # float: Python refuses to read integers of many digits
_SPACE = re.compile(r"[ \t\n\r]*")


def split_items(body: bytes, content_type: str) -> list[bytes]:
    """The items' JSON, unread.

    Raises:
        TooLarge: there are more than 10,000.
        Refused: it is no array.
    """
    items = _split_lines(body) if content_type == NDJSON else _split_array(body)
    if len(items) > MAX_ITEMS:
        raise TooLarge(f"expected at most {MAX_ITEMS} items, got more")
    return items


def _split_lines(body: bytes) -> list[bytes]:
    return list(islice((line for line in io.BytesIO(body) if not line.isspace()), MAX_ITEMS + 1))


def _split_array(body: bytes) -> list[bytes]:
    if body.count(b",") < MANY_COMMAS:
        try:
            return [bytes(item) for item in _decode_array(body)]
        except (ValueError, RecursionError):
            pass  # NaN or a lone surrogate in some item, or worse
    return _scanned(body.decode("utf-8", "surrogateescape"))


def _scanned(text: str) -> list[bytes]:
    """The same by a decoder that takes more and stops after enough."""
    try:
        return _scan_array(text)
    except json.JSONDecodeError as error:
        raise Refused(f"expected a JSON array: {error}") from None
    except RecursionError:
        raise Refused("expected a JSON array, got it nested too deeply") from None


def _scan_array(text: str) -> list[bytes]:
    at, more = _opening(text), True
    items: list[bytes] = []
    while more and len(items) <= MAX_ITEMS:
        _, end = _scan(text, at)
        items.append(text[at:end].encode("utf-8", "surrogateescape"))
        at, more = _next(text, end)
    return items


def _opening(text: str) -> int:
    at = _past_space(text, 0)
    if not text.startswith("[", at):
        raise Refused(f"expected a JSON array of bodies, or lines of them with Content-Type: {NDJSON}")
    return _past_space(text, at + 1)


def _next(text: str, at: int) -> tuple[int, bool]:
    """Where the next item starts after one that ends at `at`, and whether there is one."""
    at = _past_space(text, at)
    if text.startswith(",", at):
        return _past_space(text, at + 1), True
    if not text.startswith("]", at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    if _past_space(text, at + 1) != len(text):
        raise json.JSONDecodeError("Extra data", text, at + 1)
    return at, False


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
