"""What a process is told at its start: every option, over the channel."""

from __future__ import annotations

import msgspec
import pytest

from later.config import load
from later.processes.channel import NoAnswer
from later.processes.messages import config_of, orders

OPTIONS = {"redis": "redis://me:secret@a:1/2", "health": "[::1]:9000", "max_body": "2KiB", "retry_jitter": "0.5"}


@pytest.mark.parametrize("command", ["up", "serve", "worker"])
@pytest.mark.parametrize("flags", [{}, OPTIONS, {"health": "off", "data": "/var/lib/later"}])
def test_the_configuration_arrives_as_it_was(command: str, flags: dict[str, str]) -> None:
    config = load(command, flags, {})
    assert config_of(msgspec.json.decode(msgspec.json.encode(orders(config)))) == config


def test_another_version_is_no_supervisor_of_ours() -> None:
    with pytest.raises(NoAnswer, match=r"the supervisor is later 0\.0\.9.*restart"):
        config_of({**orders(load("up", {}, {})), "version": "0.0.9"})
