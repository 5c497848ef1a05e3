"""The files of TLS: the certificate of the daemon's own server, read again on demand."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from later.core.errors import ConfigError

log = structlog.get_logger("later.daemon")


class ServerCertificate:
    """The certificate and the key with which clients are served; without a key file, the key is in the first file."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        """Raises ConfigError if they cannot be read, or do not belong together."""
        self._certificate = certificate
        self._key = key
        self._context = self._read()

    @property
    def context(self) -> ssl.SSLContext:
        """The context of new connections."""
        return self._context

    def reload(self) -> None:
        """Read the files again, for new connections. If they cannot be used, the old ones stay in use."""
        try:
            self._context = self._read()
        except ConfigError as error:
            log.warning("certificate not replaced", reason=str(error))
        else:
            log.info("certificate replaced", certificate=str(self._certificate))

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        load_identity(context, self._certificate, self._key, "--tls-cert", "--tls-key")
        return context


def read_server_certificate(certificate: Path | None, key: Path | None) -> ServerCertificate | None:
    """Return the certificate of the daemon's server, if it has one. Raises ConfigError."""
    if certificate is None:
        if key is not None:
            raise ConfigError(f"--tls-key {key}: expected --tls-cert, too")
        return None
    return ServerCertificate(certificate, key)


def load_identity(
    context: ssl.SSLContext, certificate: Path, key: Path | None, certificate_name: str, key_name: str
) -> None:
    """Let a context prove an identity. The names are those of the options, for errors.

    Raises:
        ConfigError: a file cannot be read, or they are no certificate and its key.
    """
    check_readable(certificate, certificate_name)
    if key is not None:
        check_readable(key, key_name)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")  # an encrypted key must not ask the terminal
    except ssl.SSLError as error:
        where = f"{certificate_name} {certificate}" + ("" if key is None else f" and {key_name} {key}")
        reason = (error.reason or "no certificate, no key, or an encrypted one").lower().replace("_", " ")
        raise ConfigError(f"{where}: expected a certificate in PEM and its unencrypted key: {reason}") from None


def check_readable(file: Path, name: str) -> None:
    """Raise ConfigError unless a file can be read. OpenSSL's own errors do not say which one."""
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{name} {file}: cannot be read: {error.strerror}") from None
