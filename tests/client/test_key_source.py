"""The API key of a caller: where it comes from, and that nothing shows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from later.client.key_source import is_readable_by_others, read_key
from later.core.api_keys import make_key_text
from later.core.errors import ConfigError

KEY = make_key_text()
MISTYPED = KEY[:-1] + ("a" if KEY[-1] != "a" else "b")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n# of the billing team\n", encoding="utf-8")
    return file


def test_a_named_file_comes_before_the_environment_and_nothing_is_no_key(key_file: Path) -> None:
    other = make_key_text()
    assert read_key(str(key_file), {"LATER_KEY": other}) == KEY
    assert read_key(None, {"LATER_KEY": f" {other}\n"}) == other
    assert read_key(None, {"LATER_KEY_FILE": str(key_file)}) == KEY
    assert read_key(None, {"LATER_KEY": "", "LATER_KEY_FILE": ""}) is None


def test_what_is_no_key_is_refused_before_any_call_and_never_shown(tmp_path: Path, key_file: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text(MISTYPED, encoding="utf-8")
    absent, pipe = tmp_path / "absent", tmp_path / "pipe"
    os.mkfifo(pipe)
    for file, environ, reason in [
        (None, {"LATER_KEY": MISTYPED}, "LATER_KEY: expected a key as .*: its check digits are wrong"),
        (None, {"LATER_KEY": "s3cret"}, "LATER_KEY: expected a key as"),
        (str(wrong), {}, f"key file {wrong}: expected a key as .* mistyped"),
        (str(absent), {}, f"key file {absent}: it cannot be read: No such file or directory"),
        (str(pipe), {}, "Not a regular file, which can be read again; LATER_KEY takes what a pipe would say"),
        (None, {"LATER_KEY_FILE": str(absent)}, f"LATER_KEY_FILE {absent}: it cannot be read"),
        (KEY, {}, "key file: expected the name of a file, got a key"),
        (None, {"LATER_KEY": KEY, "LATER_KEY_FILE": str(key_file)}, "expected one of them, got both"),
    ]:
        with pytest.raises(ConfigError, match=reason) as error:
            read_key(file, environ)
        assert not any(secret in str(error.value) for secret in (KEY, MISTYPED, "s3cret"))


def test_a_file_of_this_user_should_be_for_it_alone(tmp_path: Path, key_file: Path) -> None:
    for mode, expected in ((0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)):
        key_file.chmod(mode)
        assert is_readable_by_others(str(key_file)) is expected
    assert not is_readable_by_others(str(tmp_path / "absent"))
