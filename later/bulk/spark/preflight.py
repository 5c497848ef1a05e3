"""What must be here before Spark can start: its Python packages and a Java. It imports none of them."""

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
"""The first with writers of streams that take Arrow batches."""
MIN_JAVA = 17
JAVA_VERSION_TIMEOUT_S = 60
"""How long a Java may take to say which it is: on a machine that is very busy."""
_ADVICE = "install one (apt install openjdk-17-jre-headless, brew install openjdk@17) and set PATH or JAVA_HOME to it"


class SparkMissing(LaterError):
    """The operator's fault: what Spark needs is not installed; the text says what to install."""


def check_packages() -> None:
    """Raises SparkMissing: a package is not there, or too old."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"later bulk needs Spark: pip install 'later[spark]' (there is no {', no '.join(missing)})")
    try:
        found = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:  # from a SPARK_HOME on PYTHONPATH: whoever does that knows which
        return
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < MIN_PYSPARK:
        oldest = ".".join(map(str, MIN_PYSPARK))
        raise SparkMissing(f"later bulk needs pyspark {oldest} or newer, not {found}: pip install 'later[spark]'")


def check_java(environ: Mapping[str, str]) -> None:
    """Raises SparkMissing: the Java that Spark would start is not there, or too old."""
    java = _java(environ)
    if java is None:
        raise _no_java(f"there is none ({_looked(environ)})")
    version = parse_java_version(_told(java))
    if version is None:
        raise _no_java(f"{java} does not say which it is")
    if version < MIN_JAVA:
        raise _no_java(f"{java} is Java {version}")


def _no_java(there: str) -> SparkMissing:
    return SparkMissing(f"Spark needs Java {MIN_JAVA} or newer, and {there}: {_ADVICE}")


def parse_java_version(told: str) -> int | None:
    """The 17 in what `java -version` tells; the 8 of the old `1.8.0_392`, too. None where there is no version."""
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return None if match is None else int(match[1])


def _java(environ: Mapping[str, str]) -> str | None:
    """As Spark's own scripts look for it: JAVA_HOME before PATH."""
    home = environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java", path=environ.get("PATH", ""))


def _told(java: str) -> str:
    """Nothing where it cannot be run: macOS has a `java` that only says that there is none."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, timeout=JAVA_VERSION_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (told.stderr + told.stdout).decode("utf-8", "replace")


def _looked(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    return f"JAVA_HOME is {home}" if home else "JAVA_HOME is not set, and no java is on PATH"
