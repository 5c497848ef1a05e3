"""The framework of the console: what is committed is what is pinned, as a browser can load it."""

from __future__ import annotations

import re

import pytest

from scripts.vendor import FOLDER, PACKAGES, SUMS, WrongSum, check_sum, rewrite


def test_the_committed_files_are_the_pinned_ones() -> None:
    assert {file.name for file in FOLDER.iterdir()} == SUMS.keys()
    for name, sha256 in SUMS.items():
        check_sum(name, (FOLDER / name).read_bytes(), sha256)


def test_another_content_is_refused() -> None:
    name, sha256 = next(iter(SUMS.items()))
    with pytest.raises(WrongSum, match=name):
        check_sum(name, (FOLDER / name).read_bytes() + b" ", sha256)


def test_every_import_is_a_file_beside_it() -> None:
    for file in FOLDER.glob("*.js"):
        imported = re.findall(r"""(?:from|import) ?["']([^"']+)["']""", file.read_text())
        assert all((FOLDER / name).is_file() and name.startswith("./") for name in imported), file
        assert "sourceMappingURL" not in file.read_text(), file


def test_a_bare_import_becomes_a_path() -> None:
    module = 'import{options as n}from"preact";export{n as x};\n//# sourceMappingURL=hooks.module.js.map\n'
    assert rewrite(module) == 'import{options as n}from"./preact.js";export{n as x};\n'
    assert rewrite("export default 1") == "export default 1\n"


def test_the_license_of_each_package_is_there() -> None:
    text = (FOLDER / "LICENSES").read_text()
    assert all(f"{package.name} {package.version}\n" in text for package in PACKAGES)
    assert "MIT License" in text
    assert "Apache License" in text
