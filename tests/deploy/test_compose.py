"""deploy/compose.yml and what it mounts: pinned images, paths, options and commands that exist."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from later import __version__
from later.cli.program import COMMANDS
from later.config import load
from later.option_table import OPTIONS
from later.option_types import duration_s
from tests.cases import each_case
from tests.deploy.dockerfile import IMAGE, pairs
from tests.deploy.stop_time import longest_stop_s
from tests.metrics.queries import needs_promtool
from tests.redis_users import CONFIGURATION, user_rules

DEPLOY = CONFIGURATION.parent
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("later:")}
DAEMONS = {name: service for name, service in OWN.items() if "command" in service}
FIELDS = {
    *("image", "build", "restart", "stop_grace_period", "read_only", "tmpfs", "cap_drop", "security_opt"),
    *("depends_on", "command", "environment", "ports", "profiles", "healthcheck", "volumes", "working_dir"),
}
"""The fields of a service in the Compose specification that the file uses. Another one is perhaps misspelt."""
MADE = {"./private/redis.conf", "./private/prometheus.key"}
"""Files that the commands of the README make."""


def mounts(service: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return source, target and whether it is read-only, of each volume of a service."""
    found = []
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, target, *mode = volume.split(":")
            found.append((source, target, mode == ["ro"]))
        else:
            assert volume["bind"] == {"create_host_path": False}  # or a forgotten file would become a folder
            found.append((volume["source"], volume["target"], volume["read_only"]))
    return found


def environment_of(service: dict[str, Any], **values: str) -> dict[str, str]:
    """Return the environment of a service, with `values` for its variables, and that of the image."""

    def substitute(text: str) -> str:
        return re.sub(r"\$\{(\w+)(?::?[-?]([^}]*))?\}", lambda found: values.get(found[1], ""), text)

    return {**pairs(IMAGE, "ENV"), **{name: substitute(text) for name, text in service["environment"].items()}}


@each_case(("name", "service"), [*SERVICES.items()])
def test_a_service_has_fields_of_the_specification_and_a_pinned_image(name: str, service: dict[str, Any]) -> None:
    assert service.keys() <= FIELDS
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", service["image"])
    assert service["restart"] == ("no" if "profiles" in service else "unless-stopped")
    assert service["security_opt"] == ["no-new-privileges:true"]


@each_case(("name", "service"), [*OWN.items()])
def test_ours_is_this_version_and_cannot_write_but_to_tmp(name: str, service: dict[str, Any]) -> None:
    assert service["image"] == f"later:{__version__}"
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]


@each_case(("name", "service"), [*SERVICES.items()])
def test_every_path_exists_or_is_made_by_a_documented_command(name: str, service: dict[str, Any]) -> None:
    readme = (DEPLOY / "README.md").read_text()
    for source, _, is_read_only in mounts(service):
        if not source.startswith("."):
            assert source in COMPOSE["volumes"]
        elif source in MADE:
            assert "deploy/private" in readme
            assert is_read_only
        else:
            assert (DEPLOY / source).exists()
            assert is_read_only


def test_the_store_starts_in_the_directory_of_its_file_which_is_a_volume() -> None:
    (directory,) = re.findall(r"^dir (.*)$", CONFIGURATION.read_text(), re.MULTILINE)
    assert SERVICES["valkey"]["working_dir"] == directory
    assert ("store", directory, False) in mounts(SERVICES["valkey"])


def test_only_the_api_has_a_port_of_the_machine_and_only_on_loopback() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"serve": ["127.0.0.1:8080:8080"]}


@each_case(("name", "service"), [*DAEMONS.items()])
def test_a_daemon_starts_with_its_environment(name: str, service: dict[str, Any]) -> None:
    (command,) = service["command"]
    assert command in COMMANDS
    user = {"serve": "later-api", "worker": "later-worker"}[command]
    variable = f"PASSWORD_OF_{user.upper().replace('-', '_')}"
    config = load(command, {}, environment_of(service, **{variable: "abc"}))
    assert config.store_url == f"redis://{user}:abc@valkey:6379/0"
    assert user in user_rules()


@each_case(("name", "service"), [*OWN.items()])
def test_every_variable_of_later_is_an_option(name: str, service: dict[str, Any]) -> None:
    assert service["environment"].keys() <= {option.variable for option in OPTIONS}


@each_case(("name", "service"), [*DAEMONS.items()])
def test_a_daemon_is_killed_no_sooner_than_it_has_stopped(name: str, service: dict[str, Any]) -> None:
    assert duration_s(service["stop_grace_period"]) >= longest_stop_s(service["command"][0])


def test_the_users_of_the_services_have_passwords_that_the_script_makes(tmp_path: Path) -> None:
    passwords = make_passwords(tmp_path / "private")
    text = (DEPLOY / "compose.yml").read_text()
    assert set(re.findall(r"\$\{(PASSWORD_OF_\w+|GRAFANA_PASSWORD)", text)) <= passwords.keys()
    assert set(re.findall(r"\$\{(\w+):\?", text)) <= passwords.keys()  # those that have no default
    rules = (tmp_path / "private" / "redis.conf").read_text()
    for user in user_rules():
        password = passwords[f"PASSWORD_OF_{user.upper().replace('-', '_')}"]
        assert f"user {user} on #{hashlib.sha256(password.encode()).hexdigest()} " in rules
    assert not re.search(r"^[^#]*SHA256-OF-", rules, re.MULTILINE)


def test_passwords_are_for_their_owner_only_and_are_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    made = make_passwords(folder)
    assert len(set(made.values())) == len(made)
    assert all(re.fullmatch(r"[0-9a-f]{48}", password) for password in made.values())  # right in a URL as it is
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "passwords.env").stat().st_mode & 0o777 == 0o600
    again = subprocess.run([DEPLOY / "make-passwords.sh", folder], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "exists" in again.stderr


def make_passwords(folder: Path) -> dict[str, str]:
    """Run the script, and return the passwords by their variables."""
    subprocess.run([DEPLOY / "make-passwords.sh", folder], check=True)
    lines = (folder / "passwords.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "later.yaml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert source["type"] == "prometheus"
    targets = [target for _, target, _ in mounts(SERVICES["grafana"])]
    assert "/etc/grafana/provisioning" in targets
    assert f"{provider['options']['path']}/later.json" in targets


def test_prometheus_scrapes_each_daemon_where_it_listens_with_its_key() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    scraped = {entry["names"][0]: entry["port"] for entry in job["dns_sd_configs"]}
    listening = {}
    for name, service in DAEMONS.items():
        address = load(service["command"][0], {}, environment_of(service)).http_address
        assert address is not None
        listening[name] = address.port
    targets = {target for _, target, _ in mounts(SERVICES["prometheus"])}
    assert job["job_name"] == "later"
    assert scraped == listening
    files = {*config["rule_files"], job["authorization"]["credentials_file"], "prometheus.yml"}
    assert {f"/etc/prometheus/{file}" for file in files} == targets - {"/prometheus"}


@needs_promtool
@pytest.mark.system
def test_promtool_takes_the_configuration_with_its_rules(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "rules.yml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    (tmp_path / "later.key").write_text("key")
    done = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_that_the_commands_write_is_committed() -> None:
    lines = (DEPLOY.parent / ".gitignore").read_text().splitlines()
    assert "/deploy/private/" in lines


def test_the_script_of_passwords_can_be_run() -> None:
    assert os.access(DEPLOY / "make-passwords.sh", os.X_OK)
