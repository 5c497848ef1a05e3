"""A batch's body into its items, so that one bad item spoils no other."""

from __future__ import annotations

import io
import re
from itertools import islice

from later.core.errors import Refused, TooLarge
from later.core.json_array import split_array

MAX_ITEMS = 10_000
NDJSON = "application/x-ndjson"

_OPENING = re.compile(rb"[ \t\n\r]*\[")


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
    if not _OPENING.match(body):
        raise Refused(f"expected a JSON array of bodies, or lines of them with Content-Type: {NDJSON}")
    try:
        return split_array(body, MAX_ITEMS)
    except ValueError as error:
        raise Refused(f"expected a JSON array: {error}") from None
    except RecursionError:
        raise Refused("expected a JSON array, got it nested too deeply") from None
