"""A tolerant splitter of JSON arrays: a malformed element spoils no other."""

from __future__ import annotations

import json
import re

import msgspec

MANY_COMMAS = 500_000
"""An array with fewer commas has few enough elements to be split before they are counted against a limit."""

_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_element = json.JSONDecoder(parse_int=float).raw_decode  # float: Python refuses to read integers of many digits
_SPACE = re.compile(r"[ \t\n\r]*")


def split_array(document: bytes, limit: int | None = None) -> list[bytes]:
    """Return the JSON of each element of an array, undecoded.

    Elements may hold NaN, lone surrogates or other bytes than UTF-8, which strict JSON forbids. With a `limit`, at most
    `limit + 1` elements of a large array are scanned, so that a caller can tell that there are too many.

    Raises:
        ValueError: The document is not an array (a `JSONDecodeError` if it begins like one).
        RecursionError: It is nested too deeply.
    """
    if limit is None or document.count(b",") < MANY_COMMAS:
        try:
            return [bytes(element) for element in _decode_array(document)]
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass  # an element may be malformed; the scanner finds out
    return _scan_array(document.decode("utf-8", "surrogateescape"), limit)


def _scan_array(text: str, limit: int | None) -> list[bytes]:
    elements: list[bytes] = []
    position = _skip_space(text, text.index("[") + 1)
    while limit is None or len(elements) <= limit:
        _, end = _decode_element(text, position)
        elements.append(text[position:end].encode("utf-8", "surrogateescape"))
        position = _skip_space(text, end)
        if text.startswith("]", position):
            if _skip_space(text, position + 1) != len(text):
                raise json.JSONDecodeError("Extra data", text, position + 1)
            break
        if not text.startswith(",", position):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        position = _skip_space(text, position + 1)
    return elements


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
