"""The commands `up`, `serve` and `worker`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from later.cli.exit import ExitStatus
from later.cli.main import DAEMONS, main
from later.cli.program import run
from later.config import Config
from later.core.api_keys import make_key_text
from later.option_table import DAEMON_COMMANDS
from tests.cli.api_stub import Capture

DaemonRuns = list[tuple[str, Config]]


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> DaemonRuns:
    """The daemons that were run, each with its runner and its configuration; none really runs."""
    runs: DaemonRuns = []

    def record(runner: str) -> Callable[[Config], int]:
        def run(config: Config) -> int:
            runs.append((runner, config))
            return 7

        return run

    monkeypatch.setattr("later.daemon.single.run", record("single"))
    monkeypatch.setattr("later.processes.supervisor.run", record("supervisor"))
    return runs


def test_a_daemon_runs_with_its_configuration_and_exits_immediately(daemons: DaemonRuns) -> None:
    assert run(["up", "--tick", "1"]) == ExitStatus(7, immediate=True)
    assert run(["serve", "--redis", "redis://a"]) == ExitStatus(7, immediate=True)
    assert run(["worker", "--data", "d"]) == ExitStatus(7, immediate=True)
    assert [runner for runner, _ in daemons] == ["single"] * 3
    up, serve, worker = (config for _, config in daemons)
    assert (up.command, up.tick_ms, up.redis_given) == ("up", 1000, False)
    assert (serve.command, serve.store_url) == ("serve", "redis://a")
    assert worker.command == "worker"
    assert worker.store_url == f"unix://{Path.cwd()}/d/store.sock"


@pytest.mark.parametrize("command", ["up", "serve", "worker"])
def test_a_daemon_of_several_processes_runs_a_supervisor(command: str, daemons: DaemonRuns) -> None:
    run([command, "--processes", "3"])
    ((runner, config),) = daemons
    assert (runner, config.command, config.processes) == ("supervisor", command, 3)


def test_names_and_origins_may_be_given_many_times(daemons: DaemonRuns) -> None:
    run(["up", "--allow-host", "a", "--allow-host", "b", "--allow-origin", "https://a", "--allow-origin", "https://b"])
    ((_, config),) = daemons
    assert config.allow_hosts == frozenset({"a", "b"})
    assert config.allow_origins == frozenset({"https://a", "https://b"})


def test_what_is_on_or_off_is_on_if_it_has_no_value(daemons: DaemonRuns) -> None:
    run(["up", "--behind-proxy", "--https-only", "--tick", "1"])
    run(["up", "--behind-proxy", "off", "--delays", "off"])
    (_, on), (_, off) = daemons
    assert (on.behind_proxy, on.https_only, on.tick_ms) == (True, True, 1000)
    assert (off.behind_proxy, off.https_only, off.policy.delays) == (False, False, False)


def test_a_daemon_that_fails_exits_immediately(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def fail(config: Config) -> int:
        raise OSError(98, "address already in use")

    monkeypatch.setattr("later.daemon.single.run", fail)
    assert run(["up"]) == ExitStatus(1, immediate=True)
    assert capsys.readouterr().err == "later: address already in use\n"


def test_main_exits_without_waiting_for_the_threads_of_a_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    exit_codes: list[int] = []
    monkeypatch.setattr("later.cli.program.run", lambda arguments: ExitStatus(3, immediate=True))
    monkeypatch.setattr("os._exit", exit_codes.append)
    with pytest.raises(SystemExit):
        main()
    assert exit_codes == [3]


def test_signals_stop_every_daemon_from_its_start_on() -> None:
    assert set(DAEMONS) == DAEMON_COMMANDS | {"run"}


def test_a_root_key_in_place_of_its_file_is_not_shown(daemons: DaemonRuns, capsys: Capture) -> None:
    key = make_key_text()
    assert run(["up", "--root-key-file", key]).code == 2
    error = capsys.readouterr().err
    assert key not in error
    assert "--root-key-file: expected the name of a file, got a key: put it into LATER_ROOT_KEY" in error
