"""What a create asks for, read from its JSON."""

from __future__ import annotations

import msgspec

from later.core.parsing import parse_leniently
from later.core.task import Draft

_decode_draft = msgspec.json.Decoder(Draft).decode


def parse_draft(body: bytes) -> Draft:
    """What a create asks for.

    Raises:
        Refused: with the first wrong field's name where there is one.
    """
    try:
        return _decode_draft(body)
    except (ValueError, RecursionError):
        return parse_leniently(body, Draft)
