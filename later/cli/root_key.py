"""The root key, which is in no store: for the first start, for containers, and for a store that has lost its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from later.config import Config
from later.core.api_keys import check_key_text, has_key_form, root_key
from later.core.errors import ConfigError
from later.regular_file import read_regular_file

ROOT_KEY_VARIABLE = "LATER_ROOT_KEY"
"""The environment variable with the root key itself, which must not stand on a command line."""


def read_root_key(config: Config, environ: Mapping[str, str]) -> Config:
    """Return the configuration with the root key, if the environment has one or --root-key-file names one.

    Raises:
        ConfigError: both do, or it is no key, or the file cannot be read; the text never shows the key.
    """
    text, file, source = environ.get(ROOT_KEY_VARIABLE) or None, config.root_key_file, ROOT_KEY_VARIABLE
    if file is not None:
        if has_key_form(file.name.strip()):
            raise ConfigError(
                f"--root-key-file: expected the name of a file, got a key: put it into {ROOT_KEY_VARIABLE}"
            )
        source = f"--root-key-file {file}"
        if text is not None:
            raise ConfigError(f"{source} and {ROOT_KEY_VARIABLE}: expected one of them, got both")
        try:
            text = read_regular_file(file).decode("ascii")
        except UnicodeDecodeError:
            text = ""
        except OSError as error:
            raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
    if text is None:
        return config
    try:
        return replace(config, root_key=root_key(check_key_text(text)))
    except ValueError as error:
        raise ConfigError(f"{source}: expected {error}") from None
