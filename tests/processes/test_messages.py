"""What a process is told at its start: every option, over the channel."""

from __future__ import annotations

import msgspec
import pytest

from later.config import load
from later.option_types import Address
from later.processes.messages import decode_startup, startup_config
from later.processes.rpc import RpcError

PLACES = [Address("127.0.0.1", 8080), Address("::1", 8080)]
OPTIONS = {"redis": "redis://me:secret@a:1/2", "health": "[::1]:9000", "max_body": "2KiB", "retry_jitter": "0.5"}


@pytest.mark.parametrize("command", ["up", "serve", "worker"])
@pytest.mark.parametrize("flags", [{}, OPTIONS, {"health": "off", "data": "/var/lib/later"}])
def test_configuration_and_places_arrive_as_they_were(command: str, flags: dict[str, str]) -> None:
    config = load(command, flags, {})
    assert decode_startup(msgspec.json.decode(msgspec.json.encode(startup_config(config, PLACES)))) == (config, PLACES)


def test_another_version_is_no_supervisor_of_ours() -> None:
    with pytest.raises(RpcError, match=r"the supervisor is later 0\.0\.9.*restart"):
        decode_startup({**startup_config(load("up", {}, {}), []), "version": "0.0.9"})
