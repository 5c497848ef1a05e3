"""URLs of stores and APIs, which hold no password, and the password from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import ConnectionPool

from later.core.errors import ConfigError
from later.store.settings import StoreSettings
from later.store.url import check_url, is_store_url, settings_from_url, split_secrets
from tests.cases import each_case

HARD_PASSWORD = "p@ss/w:ö rd%25?#[&="


@each_case("url", ["http://127.0.0.1:8080", "https://later.example/base", "redis://h", "redis://me@h:6379/3",
                                 "rediss://[::1]:6380?ssl_cert_reqs=none", "unix:///run/store.sock?db=2",
                                 "redis+sentinel://me@s1:26379,[::1]:26379/orders/2?sentinel_user=w",
                                 "rediss+sentinel://s1:26379/orders?ssl_cert_reqs=none"])  # fmt: skip
def test_a_url_without_a_password_is_accepted(url: str) -> None:
    assert check_url(url) == url


@each_case("url", ["redis://:hush@h", "redis://me:hush@h:6379/0", "redis://me:@h", "redis://h?password=hush",
                                 "rediss://h?db=1&password=", "unix://:hush@/run/store.sock",
                                 "unix:///run/store.sock?password=hush", "redis://h:x?password=hush"])  # fmt: skip
def test_a_password_in_a_url_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_url(url)

    assert "hush" not in str(refused.value)
    assert "LATER_REDIS_PASSWORD," in str(refused.value)
    assert "LATER_REDIS_PASSWORD_FILE" in str(refused.value)


@each_case("url", ["", "h:6379", "ftp://h", "redis://", "redis://h/x", "unix://h/s", "redis://h?host=x",
                                 "redis://u:hush?@h", "redis+sentinel://s1:1", "redis+sentinel://s1/orders",
                                 "redis+sentinel://s1:1,/orders", "redis+sentinel://s1:1/orders/x",
                                 "redis+sentinel://s1:1/or ders", "redis+sentinel://s1:1/orders?nothing=hush",
                                 "redis+sentinel://s1:99999/orders", "redis+cluster://h", "redis+cluster://h:1/1",
                                 "redis+cluster://h:1?db=1", "redis+cluster://h:1,", "rediss+cluster://h:1?hush=1",
                                 "http://me:hush@h", "http://h?token=hush", "//h"])  # fmt: skip
def test_an_invalid_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^url .*: expected .*(http|URL)") as refused:
        check_url(url)

    assert "hush" not in str(refused.value)


def test_a_password_of_sentinels_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="LATER_REDIS_SENTINEL_PASSWORD") as refused:
        check_url("redis+sentinel://s1:1/orders?sentinel_password=hush")

    assert "hush" not in str(refused.value)


def test_sentinels_may_be_names_and_addresses_of_both_kinds() -> None:
    """Newer releases of Python refuse such a list of hosts in `urlsplit` (CVE-2025-0938)."""
    url = "redis+sentinel://me@s1:1,[::1]:2/orders/0"
    secrets = {"LATER_REDIS_PASSWORD": "h/u", "LATER_REDIS_SENTINEL_PASSWORD": "s&h"}
    with_secrets = "redis+sentinel://me:h%2Fu@s1:1,[::1]:2/orders/0?sentinel_password=s%26h"
    settings = settings_from_url(url, "later", 2.0, secrets)
    assert settings.url == with_secrets
    assert "h%2Fu" not in repr(settings)
    assert split_secrets(with_secrets) == (url, secrets)


def test_a_store_url_is_distinguished_from_an_api_url() -> None:
    assert [is_store_url(url) for url in ("redis://h", "rediss://h", "unix:///s", "http://h", "https://h")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_without_a_password_the_settings_have_the_url_itself() -> None:
    assert settings_from_url("redis://h", "later", 2.0, {}) == StoreSettings(
        url="redis://h", prefix="later", timeout_s=2.0
    )


@each_case(
    ("url", "user"),
    [
        ("redis://h:6379/3", None),
        ("redis://[::1]:6379", None),
        ("rediss://me@h", "me"),
        ("unix:///s?db=2", None),
        ("unix://me@/s", "me"),
    ],
)
def test_the_client_gets_the_environments_password_unchanged(url: str, user: str | None) -> None:
    settings = settings_from_url(url, "later", 2.0, {"LATER_REDIS_PASSWORD": HARD_PASSWORD})

    known, bare = (ConnectionPool.from_url(text).connection_kwargs for text in (settings.url, url))
    assert (known["password"], known.get("username")) == (HARD_PASSWORD, user)
    assert [known.get(key) for key in ("host", "port", "path", "db")] == [
        bare.get(key) for key in ("host", "port", "path", "db")
    ]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\nanother line\n"])
def test_the_password_may_be_the_first_line_of_a_file(tmp_path: Path, end: str) -> None:
    file = tmp_path / "password"
    file.write_bytes((HARD_PASSWORD + end).encode())

    settings = settings_from_url("redis://h", "later", 2.0, {"LATER_REDIS_PASSWORD_FILE": str(file)})

    assert ConnectionPool.from_url(settings.url).connection_kwargs["password"] == HARD_PASSWORD


def test_two_passwords_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of them, got both"):
        settings_from_url("redis://h", "later", 2.0, {"LATER_REDIS_PASSWORD": "a", "LATER_REDIS_PASSWORD_FILE": "/b"})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"\nx", "its first line, which is empty"),
        (b"\xff", "cannot be read: it is not UTF-8"),
    ],
)
def test_a_file_without_a_password_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        settings_from_url("redis://h", "later", 2.0, {"LATER_REDIS_PASSWORD_FILE": str(file)})


def test_an_api_url_gives_no_store_settings() -> None:
    with pytest.raises(ConfigError, match="expected the store's"):
        settings_from_url("http://h", "later", 2.0, {})
