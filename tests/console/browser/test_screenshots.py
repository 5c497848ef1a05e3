"""The scripts that show the console with made-up data."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen, run
from tempfile import TemporaryDirectory

from PIL import Image

from scripts import console_screenshots


def test_the_script_takes_each_picture(tmp_path: Path) -> None:
    """In a process of its own, because this one may be running the event loop of a browser already."""
    command = [sys.executable, "-m", "scripts.console_screenshots", "--folder", str(tmp_path)]
    assert run(command, check=False).returncode == 0
    for picture in console_screenshots.PICTURES:
        with Image.open(tmp_path / picture.name) as image:
            assert image.size == (console_screenshots.WIDTH, picture.height)
            assert len(image.getcolors(1_000_000) or ()) > 500  # a page that is drawn, with its charts


def test_the_example_ends_with_all_that_it_has_started() -> None:
    command = [sys.executable, "-m", "scripts.console_example"]
    with TemporaryDirectory(prefix="later-") as folder:  # the path of a socket in pytest's own may be too long
        with Popen(command, stdout=PIPE, text=True, env={**os.environ, "TMPDIR": folder}) as process:
            assert process.stdout is not None
            assert process.stdout.readline().endswith("/console/\n")
            assert os.listdir(folder)
            process.terminate()
            assert process.wait(40) == 0
        assert os.listdir(folder) == []
