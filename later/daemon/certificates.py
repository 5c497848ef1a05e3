"""The files of TLS: the certificate of the daemon's own server, and those that receivers and their callers show."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import structlog

from later.config import Config
from later.core.errors import ConfigError
from later.core.receiver_tls import ReceiverTls
from later.delivery.tls import TlsContexts, build_distrustful_context, build_tls_context
from later.regular_file import read_regular_file

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
        context.options |= ssl.OP_NO_RENEGOTIATION  # OpenSSL before 3.0 lets clients ask for handshakes without end
        context.set_alpn_protocols(["http/1.1"])
        load_identity(context, self._certificate, self._key, "--tls-cert", "--tls-key")
        return context


def check_tls_files(config: Config) -> None:
    """Read what the processes of a daemon will read: if they all failed, each would say so. Raises ConfigError."""
    read_server_certificate(config.tls_cert, config.tls_key)
    if config.runs_worker and (config.ca is not None or config.receivers):
        read_client_tls(config.ca, config.receivers)


def read_server_certificate(certificate: Path | None, key: Path | None) -> ServerCertificate | None:
    """Return the certificate of the daemon's server, if it has one. Raises ConfigError."""
    if certificate is None:
        if key is not None:
            raise ConfigError(f"--tls-key {key}: expected --tls-cert, too")
        return None
    return ServerCertificate(certificate, key)


def read_client_tls(ca: str | None, receivers: Mapping[str, ReceiverTls]) -> TlsContexts:
    """Return the TLS of calls to receivers: `ca` adds authorities to the machine's.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be.
    """

    def trust_machine() -> ssl.SSLContext:
        context = build_tls_context()
        if ca is not None:
            trust(context, Path(ca), "--ca")
        return context

    by_name: dict[str, ssl.SSLContext] = {}
    for name, files in receivers.items():
        where = f'receivers."{name}"'
        if files.ca is None:
            context = trust_machine()
        else:
            context = build_distrustful_context()
            trust(context, files.ca, f"{where}.ca")
        if files.cert is not None:
            load_identity(context, files.cert, files.key, f"{where}.cert", f"{where}.key")
        by_name[name] = context
    return TlsContexts(trust_machine(), by_name)


def trust(context: ssl.SSLContext, ca: Path, name: str) -> None:
    """Let a context trust the authorities of a file. Raises ConfigError."""
    check_readable(ca, name)
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError:
        raise ConfigError(f"{name} {ca}: expected certificates of authorities in PEM") from None


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
    """Raise ConfigError unless a file can be read. OpenSSL would wait for a FIFO, and does not say which file it is."""
    try:
        read_regular_file(file)
    except OSError as error:
        raise ConfigError(f"{name} {file}: cannot be read: {error.strerror}") from None
