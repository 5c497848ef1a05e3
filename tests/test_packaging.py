"""The built packages: a wheel with the module that Spark looks for, also when built from the source distribution."""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from importlib import import_module, metadata, reload
from pathlib import Path
from subprocess import run
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from later.cli.program import SERVER
from tests.cases import each_case

ROOT = Path(__file__).parent.parent


def build(target: str, source: Path, into: Path) -> Path:
    """Build a target with hatch, without network or further packages, and return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    run(command, cwd=source, check=True, capture_output=True)
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.system
def test_spark_finds_its_module_at_the_top_of_the_wheel(wheel: Path) -> None:
    with ZipFile(wheel) as built:
        names = built.namelist()
        top = {name for name in names if "/" not in name}
        module = built.read("pyspark_later.py")

    assert top == {"pyspark_later.py"}
    assert module == (ROOT / "later" / "bulk" / "pyspark_later.py").read_bytes()


@pytest.mark.system
def test_a_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    packed = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()

    assert build("wheel", tree, tmp_path / "wheel").read_bytes() == wheel.read_bytes()


def test_spark_finds_the_module_of_an_editable_installation() -> None:
    """If this fails after a change of the build, run `pip install -e .` again."""
    assert any(file.name == "pyspark_later.py" for file in metadata.files("later") or [])
    assert import_module("pyspark_later").DefaultSource.name() == "later"


def test_the_module_is_harmless_where_the_data_source_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("later.bulk.pyspark_later")
    with monkeypatch.context() as without:
        without.delattr(module, "DefaultSource")
        without.setitem(sys.modules, "later.bulk.datasource.source", None)

        assert not hasattr(reload(module), "DefaultSource")


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LIBRARY = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {
    extra: [Requirement(text) for text in requirements]
    for extra, requirements in PROJECT["optional-dependencies"].items()
}


def pins(lock: str) -> dict[str, str]:
    """Return the packages of a lock with their versions."""
    lines = (ROOT / lock).read_text("utf-8").splitlines()
    return dict(line.split(" ")[0].split("==") for line in lines if re.match(r"[a-z0-9.-]+==", line))


def names(requirements: Iterable[Requirement]) -> AbstractSet[str]:
    """Return the names of packages as a lock spells them, without later itself, of which an extra names others."""
    return {canonicalize_name(requirement.name) for requirement in requirements} - {"later"}


def test_later_alone_is_the_library_with_three_dependencies() -> None:
    locked = pins("requirements-base.txt").keys()

    assert names(LIBRARY) == {"aiohttp", "click", "msgspec"}
    assert not locked & (names(EXTRAS["server"] + EXTRAS["spark"]) - names(LIBRARY) - {"aiohappyeyeballs", "yarl"})


def test_the_server_is_locked_without_spark_and_development_with_all() -> None:
    server, development = pins("requirements.txt").keys(), pins("requirements-dev.txt").keys()

    assert names(EXTRAS["server"]) <= server
    assert {"pyspark", "pyarrow", "pandas"} <= names(EXTRAS["spark"])
    assert not names(EXTRAS["spark"]) & server
    assert names(requirement for requirements in EXTRAS.values() for requirement in requirements) <= development
    assert {str(requirement) for requirement in EXTRAS["spark"] + EXTRAS["dev"]} >= {
        "later[server]",
        "later[otel,server,spark,testing]",
    }


def test_the_commands_of_the_server_ask_for_what_its_extra_installs_everywhere() -> None:
    installed = {requirement.name for requirement in EXTRAS["server"] if requirement.marker is None}

    assert set(SERVER.modules) == installed - names(LIBRARY)


@pytest.mark.system
def test_what_an_executor_of_spark_loads_needs_msgspec_and_nothing_else_of_what_later_installs() -> None:
    """Machines of a cluster may have `later` as a zip, beside pyarrow, pandas and msgspec."""
    missing = {requirement.name for requirement in LIBRARY + EXTRAS["server"]} - {"msgspec"} | {"multidict"}
    modules = ("later.bulk.datasource.source", "later.bulk.jobs.run", "later.client.batches")
    code = f"import sys; sys.modules.update(dict.fromkeys({sorted(missing)})); import {', '.join(modules)}"

    run([sys.executable, "-c", code], cwd=ROOT, check=True)


@each_case("requirement", LIBRARY)
def test_the_lowest_versions_that_are_tested_are_those_that_the_library_allows(requirement: Requirement) -> None:
    (floor,) = (Version(each.version) for each in requirement.specifier if each.operator == ">=")

    assert Version(pins("requirements-lowest.txt")[requirement.name]) == floor
    assert requirement.specifier.contains(pins("requirements-base.txt")[requirement.name])


def test_the_tests_of_zaqar_are_locked_beside_what_later_has() -> None:
    """They come behind it on the path of the same process: no package may have two versions."""
    ours, theirs = pins("requirements-dev.txt"), pins("requirements-zaqar.txt")
    text = (ROOT / "requirements-zaqar.txt").read_text("utf-8")

    assert {"zaqar", "python-zaqarclient"} <= theirs.keys()
    assert {name: version for name, version in theirs.items() if ours.get(name, version) != version} == {}
    assert "://" not in text
    assert text.count("--hash=") >= len(theirs)
