"""Checks before Spark starts: what is missing is reported in one line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from later.bulk.spark.preflight import SparkMissing, check_java, check_packages, parse_java_version
from tests.cases import each_case


def write_java(directory: Path, version: str) -> str:
    """Write a program that reports that version; return its JAVA_HOME."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/bin/sh\necho 'openjdk version "{version}" 2025-04-15' >&2\n""", encoding="utf-8")
    program.chmod(0o755)
    return str(directory)


@each_case(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "25-ea"', 25),
        ("The operation couldn’t be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_major_version_of_java_is_parsed(output: str, version: int | None) -> None:
    assert parse_java_version(output) == version


@pytest.mark.parametrize("version", ["17.0.1", "21", "25"])
def test_java_17_or_newer_is_accepted(tmp_path: Path, version: str) -> None:
    check_java({"JAVA_HOME": write_java(tmp_path, version), "PATH": ""})


def test_without_a_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing, match=r"needs Java 17 or newer, and no Java was found.*install one.*JAVA_HOME"):
        check_java({"PATH": str(tmp_path), "JAVA_HOME": ""})


def test_an_old_java_is_named(tmp_path: Path) -> None:
    home = write_java(tmp_path, "1.8.0_392")

    with pytest.raises(SparkMissing, match=f"{home}/bin/java is Java 8: install one"):
        check_java({"PATH": f"{home}/bin"})


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    good, old = write_java(tmp_path / "new", "21"), write_java(tmp_path / "old", "11.0.2")

    with pytest.raises(SparkMissing, match="is Java 11"):
        check_java({"PATH": f"{good}/bin", "JAVA_HOME": old})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    good = write_java(tmp_path / "new", "21")

    with pytest.raises(SparkMissing, match="JAVA_HOME is /nowhere"):
        check_java({"PATH": f"{good}/bin", "JAVA_HOME": "/nowhere"})


def test_a_java_that_does_not_run_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    program.chmod(0o755)

    with pytest.raises(SparkMissing, match="java does not report its version"):
        check_java({"PATH": str(tmp_path)})


def test_the_packages_are_installed() -> None:
    check_packages()


def test_without_the_packages_one_line_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SparkMissing, match=r"needs Spark: pip install 'later\[spark\]' \(missing: pyspark, pyarrow"):
        check_packages()


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.1")

    with pytest.raises(SparkMissing, match=r"needs pyspark 4.1 or newer, not 3.5.1"):
        check_packages()
