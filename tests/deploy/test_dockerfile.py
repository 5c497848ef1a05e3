"""The image, as far as it can be checked without a builder."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

from click import Group

from later import __version__
from later.cli.groups import load_command
from later.cli.program import COMMANDS
from later.config import load
from tests.cases import each_case
from tests.deploy.dockerfile import BUILD, IMAGE, PATH, ROOT, copied, only, pairs, read_stages

ENVIRONMENT = pairs(IMAGE, "ENV")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    ignored = PATH.with_name("Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in ignored if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert copied()
    for source in copied():
        assert (ROOT / source).exists()
        assert f"!{source}" in patterns


def test_the_files_that_the_project_needs_to_be_built_are_copied() -> None:
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "later"} <= set(copied())


def test_both_stages_have_the_same_base_so_that_the_venv_finds_its_python() -> None:
    (base,) = re.findall(r"^ARG BASE=(.*)$", PATH.read_text(), re.MULTILINE)
    assert [stage[0].text.split()[0] for stage in (BUILD, IMAGE)] == ["${BASE}", "${BASE}"]
    assert re.fullmatch(r"python:3\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", base)
    assert f"Programming Language :: Python :: {base[7:11]}" in PROJECT["classifiers"]


def test_the_last_user_is_a_number_and_not_root() -> None:
    users = [instruction.text for instruction in IMAGE if instruction.name == "USER"]
    after = IMAGE[[i.name for i in IMAGE].index("USER") :]
    assert users == ["10001:10001"]
    assert "RUN" not in [instruction.name for instruction in after]


def test_the_command_is_process_1_and_takes_the_stop_signal_itself() -> None:
    entry, arguments = only(IMAGE, "ENTRYPOINT"), only(IMAGE, "CMD")
    assert entry.is_exec_form
    assert arguments.is_exec_form
    assert entry.arguments == [*PROJECT["scripts"]]
    assert only(IMAGE, "STOPSIGNAL").text == "SIGTERM"


def test_the_default_command_has_options_that_it_takes_and_listens_on_the_exposed_ports() -> None:
    command, flag, value = only(IMAGE, "CMD").arguments
    variables = {name: text for name, text in ENVIRONMENT.items() if name.startswith("LATER_")}
    up, worker = load(command, {flag.lstrip("-"): value}, variables), load("worker", {}, variables)
    assert str(up.data) == value == only(IMAGE, "VOLUME").text
    assert up.http_address is not None
    assert worker.http_address is not None
    assert only(IMAGE, "EXPOSE").text.split() == [str(up.http_address.port), str(worker.http_address.port)]
    assert (up.http_address.host, worker.http_address.host, up.log_format) == ("0.0.0.0", "0.0.0.0", "json")


def test_the_health_check_is_a_command_that_knows_both_addresses() -> None:
    check = only(IMAGE, "HEALTHCHECK").text
    options, _, command = check.partition(" CMD ")
    assert command == '["later", "healthy"]'
    healthy = load_command(COMMANDS["healthy"])
    assert not isinstance(healthy, Group)
    assert {"listen", "health", "tls_cert"} <= {parameter.name for parameter in healthy.params}
    assert {"LATER_LISTEN", "LATER_HEALTH"} <= ENVIRONMENT.keys()
    assert "--timeout=5s" in options  # later healthy waits for 2 s itself


def test_the_labels_are_the_projects() -> None:
    labels = {name.rpartition(".")[2]: value for name, value in pairs(IMAGE, "LABEL").items()}
    assert labels == {
        "title": PROJECT["name"],
        "description": PROJECT["description"],
        "licenses": PROJECT["license"],
        "version": __version__,
    }


@each_case(("text", "stages"), [
    ("ARG A=1\n# FROM x\nFROM a\nRUN b \\\n  && c", [[("FROM", "a"), ("RUN", "b && c")]]),
    ("FROM a AS b\nCMD [\"x\", \"y\"]\nFROM c", [[("FROM", "a AS b"), ("CMD", '["x", "y"]')], [("FROM", "c")]]),
])  # fmt: skip
def test_instructions_are_read(text: str, stages: list[list[tuple[str, str]]]) -> None:
    assert read_stages(text) == stages


@each_case("name", ["deploy/private/passwords.env", "later-data/signing.key", ".git/config", ".env", "later.toml"])
def test_no_secret_of_a_checkout_is_sent_to_the_builder(name: str) -> None:
    lines = PATH.with_name("Dockerfile.dockerignore").read_text().splitlines()
    taken = [line[1:] for line in lines if line.startswith("!")]
    assert not [pattern for pattern in taken if fnmatch(name, pattern) or name.startswith(f"{pattern}/")]
