"""The parameters of a query, as Zaqar reads them.

A list comes as repeated parameters, or with commas. Of another parameter that comes twice the last one counts, and an
empty one counts as absent. Parameters that nobody asks for are ignored.
"""

from __future__ import annotations

from multidict import MultiMapping

from later.api.zaqar.error_answers import invalid_parameter

_SWITCHES = dict.fromkeys(("true", "True", "t", "yes", "y", "1", "on"), True) | dict.fromkeys(
    ("false", "False", "f", "no", "n", "0", "off"), False
)

Query = MultiMapping[str]


def list_parameter(query: Query, name: str) -> list[str]:
    """Return the values of a parameter; none if it is absent."""
    return [value for text in query.getall(name, ()) for value in text.split(",") if value]


def text_parameter(query: Query, name: str) -> str | None:
    """Return the value of a parameter; None if it is absent."""
    values = [value for value in query.getall(name, ()) if value]
    return values[-1] if values else None


def integer_parameter(query: Query, name: str) -> int | None:
    """Return a parameter that is an integer; None if it is absent. Raises ZaqarError."""
    text = text_parameter(query, name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise invalid_parameter(f'The "{name}" parameter is invalid. The value must be an integer.') from None


def switch_parameter(query: Query, name: str) -> bool | None:
    """Return a parameter that is true or false; None if it is absent. Raises ZaqarError."""
    text = text_parameter(query, name)
    if text is None:
        return None
    if text not in _SWITCHES:
        expected = 'The value of the parameter must be "true" or "false".'
        raise invalid_parameter(f'The "{name}" parameter is invalid. {expected}')
    return _SWITCHES[text]
