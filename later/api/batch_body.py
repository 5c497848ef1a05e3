"""The body of a batch, split into items so that a malformed item spoils no other."""

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
    """Return the JSON of each item, undecoded.

    Raises:
        TooLarge: there are more than 10,000 items.
        Refused: the body is not an array.
    """
    if content_type == NDJSON:
        items = list(islice((line for line in io.BytesIO(body) if not line.isspace()), MAX_ITEMS + 1))
    elif not _OPENING.match(body):
        raise Refused(f"expected a JSON array of bodies, or lines of them with Content-Type: {NDJSON}")
    else:
        try:
            items = split_array(body, MAX_ITEMS)
        except ValueError as error:
            raise Refused(f"expected a JSON array: {error}") from None
        except RecursionError:
            raise Refused("expected a JSON array, got it nested too deeply") from None
    if len(items) > MAX_ITEMS:
        raise TooLarge(f"expected at most {MAX_ITEMS} items, got more")
    return items
