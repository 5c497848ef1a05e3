"""The Retry-After header: how long a server asks its caller to wait."""

from __future__ import annotations

from datetime import UTC


def parse_retry_after(text: str, now: int) -> int | None:
    """Return the pause in ms that a Retry-After asks for, in seconds or as an HTTP date (RFC 9110, section 10.2.3).

    Return None if it is neither, and 0 for a date in the past.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text.lstrip("0")[:12] or 0) * 1000
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # it imports ten modules more, and dates are rare

    try:
        date = parsedate_to_datetime(text)
        in_utc = date.replace(tzinfo=UTC) if date.tzinfo is None else date
        return max(int(in_utc.timestamp() * 1000) - now, 0)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
