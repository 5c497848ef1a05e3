"""The search for secrets in all that the tests of processes see finds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from later.core.api_keys import make_key_text
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
    command = [sys.executable, "-c", "import time; time.sleep(60)", canary]
    with pytest.raises(AssertionError, match="in the arguments of a process"):
        subprocess.Popen(command)
    pid = os.posix_spawn(sys.executable, command, os.environ)  # as a daemon might start one
    try:
        wait_until(Path(f"/proc/{pid}/cmdline").read_bytes, "the process has its arguments")
        with pytest.raises(AssertionError, match="in the arguments of a process"):
            canaries.check_arguments()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_each_key_that_a_test_makes_is_searched_for_in_the_output_of_all_that_it_starts() -> None:
    key = canaries.add_key(make_key_text())
    for secret in (key, canaries.KEY):
        env = {**os.environ, "SECRET": secret}
        for stream in ("stdout", "stderr"):
            command = [sys.executable, "-c", f"import os, sys; sys.{stream}.write(os.environ['SECRET'][15:])"]
            with pytest.raises(AssertionError, match="in the output of a process: the key"):
                subprocess.run(command, capture_output=True, env=env, check=False)


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
    with pytest.raises(AssertionError, match="in the arguments of a process"):
        run_command(canaries.KEY)
