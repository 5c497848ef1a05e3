"""The signing key of a command: an embedded store has its own, which is made once; elsewhere an option names it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from later.config import Config, load
from later.core.errors import ConfigError
from later.core.signing import Master, make_master
from later.daemon.backing_store import build_backing_store
from later.daemon.signing_key import format_masters, read_masters
from later.embedded import EmbeddedError
from later.embedded.key_file import make_signing_key, signing_key_file
from later.metrics import Metrics

MASTER, OTHER = Master(bytes(range(32))), Master(bytes(32))


def config(command: str = "worker", environ: dict[str, str] | None = None, **flags: str) -> Config:
    return load(command, flags, environ or {})


class TestItsOwnKey:
    def test_it_is_made_for_this_user_alone_and_kept(self, tmp_path: Path) -> None:
        previous = os.umask(0)
        make_signing_key(tmp_path)
        os.umask(previous)
        file = signing_key_file(tmp_path)
        assert (stat.S_IMODE(file.stat().st_mode), [path.name for path in tmp_path.iterdir()]) == (0o600, [file.name])
        made = file.read_text()
        make_signing_key(tmp_path)
        assert file.read_text() == made
        assert read_masters(config("up", data=str(tmp_path)))[0].text == made.strip()

    def test_of_many_starts_at_a_time_one_makes_it(self, tmp_path: Path) -> None:
        def start(_: int) -> tuple[Master, ...]:
            make_signing_key(tmp_path)
            return read_masters(config("up", data=str(tmp_path)))

        with ThreadPoolExecutor(16) as starts:
            assert len(set(starts.map(start, range(64)))) == 1
        assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]

    def test_a_file_system_without_hard_links_holds_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError("no hard links")

        monkeypatch.setattr("os.link", refuse)
        make_signing_key(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]

    def test_a_directory_that_cannot_hold_it_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(EmbeddedError, match="cannot hold the store"):
            make_signing_key(tmp_path / "missing")

    def test_other_commands_on_the_same_directory_use_it(self, tmp_path: Path) -> None:
        make_signing_key(tmp_path)
        for command in ("serve", "worker", "doctor", "secrets"):
            assert len(read_masters(config(command, data=str(tmp_path)))) == 1

    def test_on_a_store_of_its_own_no_other_directory_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "later-data").mkdir()
        make_signing_key(tmp_path / "later-data")
        assert read_masters(config("up", redis="redis://a")) == ()
        assert read_masters(config()) == ()
        assert len(read_masters(config("up"))) == 1

    def test_a_link_to_a_file_that_is_not_there_is_no_reason_not_to_sign(self, tmp_path: Path) -> None:
        signing_key_file(tmp_path).symlink_to(tmp_path / "not-mounted")
        make_signing_key(tmp_path)
        with pytest.raises(ConfigError, match=r"signing\.key: no such file"):
            read_masters(config("up", data=str(tmp_path)))


class TestAGivenKey:
    def test_a_file_is_read_line_by_line(self, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text(f"# new\n{OTHER.text}\n\n{MASTER.text}\n")
        assert read_masters(config(signing_key=str(file))) == (OTHER, MASTER)

    def test_the_environment_takes_a_file_or_the_keys_themselves(self, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text(MASTER.text)
        for text in (str(file), MASTER.text):
            assert read_masters(config(environ={"LATER_SIGNING_KEY": text})) == (MASTER,)
        both = f"{OTHER.text}\n{MASTER.text}\n"
        assert read_masters(config(environ={"LATER_SIGNING_KEY": both})) == (OTHER, MASTER)

    def test_it_wins_over_that_of_the_directory(self, tmp_path: Path) -> None:
        make_signing_key(tmp_path)
        given = config("up", {"LATER_SIGNING_KEY": MASTER.text}, data=str(tmp_path))
        assert read_masters(given) == (MASTER,)

    def test_the_processes_of_a_daemon_get_the_keys_and_not_the_file(self) -> None:
        text = format_masters((OTHER, MASTER))
        assert text is not None
        assert read_masters(config(environ={"LATER_SIGNING_KEY": text})) == (OTHER, MASTER)
        assert format_masters(()) is None

    def test_a_key_on_the_command_line_is_refused_and_not_shown(self) -> None:
        with pytest.raises(ConfigError, match="LATER_SIGNING_KEY") as caught:
            config(signing_key=MASTER.text)
        assert MASTER.text[5:] not in str(caught.value)

    def test_a_key_is_in_no_representation_of_the_configuration(self) -> None:
        assert MASTER.text[5:] not in repr(config(environ={"LATER_SIGNING_KEY": MASTER.text}))

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "wrong").write_text(f"{MASTER.text}\nwhsec_{'A' * 43}=\n")
        (tmp_path / "binary").write_bytes(bytes(range(256)))
        for name, reason in (
            ("missing", "no such file; `later secrets init` prints a new key"),
            ("wrong", "unlike line 2"),
            ("binary", "cannot be read: it is not ASCII"),
            (".", "cannot be read: Is a directory"),
        ):
            with pytest.raises(ConfigError) as caught:
                read_masters(config(signing_key=str(tmp_path / name)))
            assert f"--signing-key {tmp_path / name}: " in str(caught.value)
            assert reason in str(caught.value)
            assert "AAAA" not in str(caught.value)

    async def test_a_key_that_cannot_be_read_ends_the_start_before_the_embedded_store_runs(
        self, tmp_path: Path
    ) -> None:
        data = tmp_path / "data"
        store = build_backing_store(config("up", data=str(data), signing_key=str(tmp_path / "missing")), Metrics())
        with pytest.raises(ConfigError, match="no such file"):
            await store.start()
        assert not data.exists()

    def test_a_key_is_never_taken_for_a_path(self) -> None:
        key = MASTER.text[5:]
        for text in (f" {MASTER.text}", f'"{MASTER.text}"', f"whsec_{key}", key):
            with pytest.raises(ConfigError) as caught:
                read_masters(config(environ={"LATER_SIGNING_KEY": f"{text}\nx"}))
            assert key not in str(caught.value)

    def test_a_wrong_key_in_the_environment_is_not_shown(self) -> None:
        with pytest.raises(ConfigError, match=r"^LATER_SIGNING_KEY: expected whmk_ and .* unlike line 1$"):
            read_masters(config(environ={"LATER_SIGNING_KEY": make_master().text[:-3]}))
