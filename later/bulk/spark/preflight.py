"""Checks before Spark starts: its Python packages and its Java. This module imports none of the packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping

from later.core.errors import LaterError

PACKAGES = ("pyspark", "pyarrow", "pandas")
MIN_PYSPARK = (4, 1)
"""The first version with writers of streams that take Arrow batches."""
MIN_JAVA = 17
JAVA_VERSION_TIMEOUT_S = 60
"""How long `java -version` may take: long enough for a very busy machine."""
_ADVICE = "install one (apt install openjdk-17-jre-headless, brew install openjdk@17) and set PATH or JAVA_HOME to it"


class SparkMissing(LaterError):
    """A requirement of Spark that is not installed. The text says what to install."""


def check_packages() -> None:
    """Raise SparkMissing if a Python package is missing or too old."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"later bulk needs Spark: pip install 'later[spark]' (missing: {', '.join(missing)})")
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:  # a SPARK_HOME on PYTHONPATH: the operator chose its version
        return
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < MIN_PYSPARK:
        minimum = ".".join(map(str, MIN_PYSPARK))
        raise SparkMissing(f"later bulk needs pyspark {minimum} or newer, not {version}: pip install 'later[spark]'")


def check_java(environ: Mapping[str, str]) -> None:
    """Raise SparkMissing if the Java that Spark would start is missing or too old."""
    home = environ.get("JAVA_HOME")  # before PATH, as in Spark's own scripts
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java", path=environ.get("PATH", ""))
    if java is None:
        place = f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set, and no java is on PATH"
        raise _java_missing(f"no Java was found ({place})")
    try:
        output = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_VERSION_TIMEOUT_S, check=True)
        version = parse_java_version((output.stderr + output.stdout).decode("utf-8", "replace"))
    except (OSError, subprocess.SubprocessError):  # macOS has a `java` that only says that no Java is installed
        version = None
    if version is None:
        raise _java_missing(f"{java} does not report its version")
    if version < MIN_JAVA:
        raise _java_missing(f"{java} is Java {version}")


def _java_missing(reason: str) -> SparkMissing:
    return SparkMissing(f"Spark needs Java {MIN_JAVA} or newer, and {reason}: {_ADVICE}")


def parse_java_version(output: str) -> int | None:
    """Return the major version in the output of `java -version` (8 for `1.8.0_392`); None without a version."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return None if match is None else int(match[1])
