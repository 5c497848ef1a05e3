"""The fields of a policy on the command line: the option for each, and how its value is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from later.cli.console import printable
from later.cli.options import Command, OptionParamType
from later.core.durations import duration_literal
from later.core.policy import POLICY_FIELDS, PolicyField, ValueKind
from later.option_types import (
    any_integer,
    any_rate,
    any_share,
    any_topic,
    any_url,
    choice,
    duration_s,
    switch,
)

_TYPES = {
    ValueKind.DURATION: duration_s,
    ValueKind.INTEGER: any_integer,
    ValueKind.FRACTION: any_share,
    ValueKind.RATE: any_rate,
    ValueKind.SWITCH: switch,
    ValueKind.TOPIC: any_topic,
    ValueKind.URL: any_url,
}
"""The types check only the form of a value. The daemon checks its limits: it may be of another version."""

_FORMATS: dict[ValueKind, Callable[[Any], str]] = {
    ValueKind.DURATION: duration_literal,
    ValueKind.RATE: lambda rate: f"{rate}/s",
    ValueKind.SWITCH: lambda on: "on" if on else "off",
    ValueKind.TOPIC: lambda topic: printable(topic) if topic else "none",
    ValueKind.URL: lambda url: printable(url) if url else "none",
}


def field_value_options(command: Command) -> Command:
    """Give a command an option that takes a value for each field of a policy, None if it is not given."""
    for field in reversed(POLICY_FIELDS.values()):
        option_type = choice(*field.choices) if field.kind is ValueKind.CHOICE else _TYPES[field.kind]
        param_type = OptionParamType(option_type)
        command = click.option(_flag(field), field.name, type=param_type, help=field.help)(command)
    return command


def field_flag_options(command: Command) -> Command:
    """Give a command a flag for each field of a policy."""
    for field in reversed(POLICY_FIELDS.values()):
        command = click.option(_flag(field), field.name, is_flag=True, help="Inherit this field again.")(command)
    return command


def format_field(name: str, value: object) -> str:
    """Format a field's value as it is given on the command line, with its meaning if it is 0: `15m`, `0 (no limit)`."""
    field = POLICY_FIELDS.get(name)
    if field is None:  # a newer daemon's
        return json.dumps(value)
    return f"0 ({field.zero})" if field.zero and value == 0 else _FORMATS.get(field.kind, str)(value)


def _flag(field: PolicyField) -> str:
    return "--" + field.name.replace("_", "-")
