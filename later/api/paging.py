"""Pages of a listing: their size, and the cursor that leads from one to the next."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from later.api.requests import EXPECTED, MAX_PAGE_SIZE
from later.core.caller import Caller
from later.core.validation import check_id, refusal

DEFAULT_PAGE_SIZE = 100


def parse_page_size(limit: int | str | None, most: int = MAX_PAGE_SIZE) -> int:
    """Return the size of a page, from the number in a body or the text in a query; without one, the default.

    Raises:
        Refused: it is not from 1 to `most`.
    """
    if limit is None:
        return DEFAULT_PAGE_SIZE
    is_integer = not isinstance(limit, str) or (limit.isascii() and limit.isdigit() and len(limit) <= 4)
    if not is_integer or not 1 <= int(limit) <= most:
        raise refusal("limit", limit, f"an integer from 1 to {most}")
    return int(limit)


def encode_cursor(position: str) -> str:
    """Return the cursor for the position of a page's last entry. It stays valid whatever is added or removed."""
    return urlsafe_b64encode(position.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Return the position that a cursor was made from.

    Raises:
        Refused: `encode_cursor` did not make it.
    """
    try:
        position = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        position = ""
    if not position or encode_cursor(position) != cursor:
        raise refusal("cursor", cursor, EXPECTED["cursor"])
    return position


def format_cursor_id(id: str) -> str:
    """Return an id as it stands in a cursor: one with a namespace in front begins with a slash."""
    return f"/{id}" if "/" in id else id


def parse_cursor_id(text: str, caller: Caller) -> str:
    """Return the id that stands in a cursor.

    Raises:
        Refused: it is none, or of another namespace than the caller's.
    """
    if text.startswith("/") and caller.can_see_id(text[1:]):
        return text[1:]
    return check_id(text)
