"""The search for secrets in all that the tests of processes see finds them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system import canaries
from tests.system.api_client import call, create, get, post
from tests.system.daemons import run_command, run_up
from tests.system.receivers import Receiver
from tests.system.waiting import wait_until


@pytest.mark.parametrize("canary", [canaries.KEY, canaries.HEADER_VALUE], ids=["key", "header"])
def test_a_secret_in_a_log_or_in_the_arguments_of_a_process_is_found(tmp_path: Path, canary: str) -> None:
    (tmp_path / "data").mkdir()
    log = tmp_path / "data" / "store.log"
    canaries.check_logs(tmp_path)
    log.write_text(f"before {canary} after")
    with pytest.raises(AssertionError, match=r"in the log store\.log"):
        canaries.check_logs(tmp_path)
    command = [sys.executable, "-c", "print(flush=True); input()", canary]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the arguments can be read only when the program runs
        with pytest.raises(AssertionError, match="in the arguments of a process"):
            canaries.check_arguments()
        process.communicate(b"\n")


def test_calls_send_the_secrets_that_are_searched_for(folder: Path, data: Path, receiver: Receiver) -> None:
    """Only the receiver sees the header; a key in an answer or in the output of a command would be found."""
    with run_up(folder, data) as up:
        id = create(up.url, callback=receiver.url("/"))
        wait_until(lambda: receiver.calls, "the call")
        assert receiver.calls[0].headers["X-Canary"] == canaries.HEADER_VALUE
        assert post(up.url, "/query", {"id": id}).status == 404
        with pytest.raises(AssertionError, match="in the answer of GET /topics"):
            get(up.url, f"/topics?{canaries.HEADER_VALUE}=1")
        assert call(up.url, "GET", "/whoami").status == 200
    with pytest.raises(AssertionError, match="in the output of later"):
        run_command(canaries.KEY)
