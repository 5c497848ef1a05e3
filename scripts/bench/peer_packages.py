"""The packages of other task libraries, installed by pip into `build`: one folder for each, as they exclude others'."""

from __future__ import annotations

import os
import shutil
import subprocess

from scripts.bench.environment import Environment
from scripts.bench.processes import ROOT

INSTALLED = ROOT / "build" / "peers"
INSTALL_TIMEOUT_S = 120
PACKAGES = {
    "arq": ["arq==0.28.0"],
    "taskiq": ["taskiq==0.13.0", "taskiq-redis==1.2.4"],
    "dramatiq": ["dramatiq[redis]==2.2.1"],
    "huey": ["huey==3.5.4", "redis==8.1.0"],
    "celery": ["celery[redis]==5.7.0"],
}


def install_peer(environment: Environment, peer: str) -> str:
    """Install a library, unless it is installed. Return why it cannot run here; empty if it can."""
    if environment.pip is None:
        return "pip is not installed"
    folder, packages = INSTALLED / peer, PACKAGES[peer]
    marker = folder / "installed.txt"
    if marker.exists() and marker.read_text().split() == packages:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    options = ["--quiet", "--only-binary", ":all:", "--target", str(folder)]
    command = [environment.pip, "--disable-pip-version-check", "install", *options, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip install did not end within {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        return f"pip install failed: {' '.join(done.stderr.split('ERROR: ')[-1].split())}"
    marker.write_text("\n".join(packages))
    return ""


def peer_variables(peer: str) -> dict[str, str]:
    """Return the environment in which a library's packages come before later's."""
    return {"PYTHONPATH": os.pathsep.join([str(INSTALLED / peer), str(ROOT)])}
