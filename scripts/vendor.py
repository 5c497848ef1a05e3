"""Write the framework of the console into the package, from pinned releases.

    python -m scripts.vendor

The releases come through npm, from the registry that it is configured for. Their SHA-256 is pinned here, and so is that
of each file that is written, so that a test can compare what is committed without a network. For a newer release,
change the version, run this, and copy the sums that it reports.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent.parent / "later" / "console" / "static" / "vendor"
LICENSES = "LICENSES"
"""The file with the licenses of all packages."""


class Package(NamedTuple):
    """A release of a package. `sha256` is that of its archive."""

    name: str
    version: str
    sha256: str


class VendoredFile(NamedTuple):
    """A file as it is written, the package that it is from, and its path there."""

    name: str
    package: Package
    path: str


PREACT = Package("preact", "10.29.8", "b18cb0a457f3d43c7bb30391a74ade7d13e03bc6e77915e061c70c0fe1123299")
HTM = Package("htm", "3.1.1", "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90")
PACKAGES = (PREACT, HTM)
FILES = (
    VendoredFile("preact.js", PREACT, "dist/preact.module.js"),
    VendoredFile("hooks.js", PREACT, "hooks/dist/hooks.module.js"),
    VendoredFile("htm.js", HTM, "dist/htm.module.js"),
)
SUMS = {
    "preact.js": "25a5df7e9f628a587743c4641a368737a3b218f28ef738ba0376a2d5bdfc948c",
    "hooks.js": "3b5febe57b6eebec5285fc25b33c9019e53e31641df0fad7d8f9e64ca8661592",
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    LICENSES: "00da1fb413ca0601899dc52c9fbae98fee8d3dd59411ea3c325b019844a9f062",
}
"""The SHA-256 of each file as it is written."""


class WrongSum(Exception):
    """The error if something is not what is pinned."""


def main() -> int:
    """Write all files; return the exit status."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            archives = {package: read_archive(package, Path(folder)) for package in PACKAGES}
        written = {file.name: rewrite(archives[file.package][file.path]) for file in FILES}
        written[LICENSES] = join_licenses({package: archives[package]["LICENSE"] for package in PACKAGES})
        FOLDER.mkdir(exist_ok=True)
        for name, text in written.items():
            (FOLDER / name).write_text(text, "utf-8")
        for name, sha256 in SUMS.items():
            check_sum(name, written[name].encode(), sha256)
    except WrongSum as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def read_archive(package: Package, folder: Path) -> dict[str, str]:
    """Return the texts of a release that are needed, by their paths. Raises WrongSum."""
    command = ["npm", "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    archive = folder / f"{package.name}-{package.version}.tgz"
    check_sum(archive.name, archive.read_bytes(), package.sha256)
    paths = {"LICENSE", *(file.path for file in FILES if file.package == package)}
    texts = {}
    with tarfile.open(archive) as members:
        for path in paths:
            member = members.extractfile(f"package/{path}")
            assert member is not None, path
            texts[path] = member.read().decode()
    return texts


def check_sum(name: str, content: bytes, expected: str) -> None:
    """Raises WrongSum: the SHA-256 of the content is another one."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise WrongSum(f"{name}: expected {expected}, got {found}")


def rewrite(module: str) -> str:
    """Return a module as a browser can load it from its folder.

    It finds Preact by a path instead of a bare name, which would need an import map, and looks for no source map.
    """
    module = re.sub(r"""from ?["']preact["']""", 'from"./preact.js"', module)
    return re.sub(r"\n?//# sourceMappingURL=.*\n?", "", module).rstrip("\n") + "\n"


def join_licenses(licenses: dict[Package, str]) -> str:
    """Return one text of the licenses of all packages."""
    parts = [f"{package.name} {package.version}\n\n{text.strip()}\n" for package, text in licenses.items()]
    return f"\n{'-' * 72}\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
