"""Names of output directories, and the refusal of those that Spark could not read again."""

from __future__ import annotations

from typing import Any

import pytest

from later.bulk.spark import session
from later.bulk.spark.path_syntax import check_output_path, escape_glob
from later.cli.program import run
from later.core.errors import Refused
from tests.cases import each_case

Capture = pytest.CaptureFixture[str]


@each_case(
    "name",
    ["rejects", "a/b_c.d/", "./2026-11-21T09:00", "/lake/2026-11-21T09:00", "a/b:c", "rej-[a]", "_a/b", "../b",
     "s3a://lake/rejects", "s3a://lake/_a/rejects/", "s3a://_lake/rejects", "file:/rejects", "hdfs://h:8020/rejects"],
)  # fmt: skip
def test_most_names_are_accepted(name: str) -> None:
    assert check_output_path(name) == name


@each_case(
    ("name", "why"),
    [
        ("", "expected the name of a directory"),
        ("/", "expected the name of a directory"),
        ("s3a://lake", "expected the name of a directory"),
        ("s3a://lake/", "expected the name of a directory"),
        ("_rejects", "Spark ignores names .* such as _rejects"),
        ("s3a://lake/_rejects/", "Spark ignores names .* such as _rejects"),
        ("a/.rejects", r"such as \.rejects"),
        (".", r"such as \.: choose"),
        ("rej-2026-11-21T09:00", r"a local directory is \./rej-2026-11-21T09:00"),
        ("file:rejects", r"a local directory is \./file:rejects"),
    ],
)
def test_a_name_that_spark_cannot_read_is_refused(name: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        check_output_path(name)


def test_an_escaped_name_matches_itself_only() -> None:
    assert escape_glob(r"s3a://b/rej-[a]{b,c}*?\d e") == r"s3a://b/rej-\[a\]\{b,c\}\*\?\\d e"


@pytest.mark.parametrize(
    "words",
    [
        ["create", "in", "--job", "j", "--rejects", "_out"],
        ["verify", "in", "--job", "j", "--missing", "_out"],
        ["export", "_out"],
    ],
    ids=lambda words: words[0],
)
def test_commands_refuse_such_a_name_before_spark_starts(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def starts(*_: Any) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(session, "open_session", starts)

    assert run(["bulk", *words]).code == 2
    assert (
        "_out: Spark ignores names that begin with _ or ., such as _out: choose another name" in capsys.readouterr().err
    )
