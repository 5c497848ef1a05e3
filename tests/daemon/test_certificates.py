"""The files of TLS: what is read at the start, and again, and what is said about files that cannot be used."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from later.core.errors import ConfigError
from later.core.receiver_tls import ReceiverTls
from later.daemon.certificates import ServerCertificate, read_client_tls, read_server_certificate
from tests.delivery.test_tls import CERTIFICATES

ENCRYPTED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgwmAsegPHVTQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEADM/1KRxNYK7W/tSAXZiKIEgZAc
VXNM8FIrfmvKD76CLqC6gNTiAL1WF2bjF7tpsBJvvCHmAB5Q5fFqWzcBC6H/Mha8
m0hI55R32wQIBEE5bC9QuPC70rfaQNouJqvz31EXirspX4WpnmC/MGL+Tt3vnm85
CUuvMm7bstgnNSPj0iw6A0PJ+IzTiwxWo4dqoGyCG/6QLuIP+jP7IltFjufKe8I=
-----END ENCRYPTED PRIVATE KEY-----
"""


def split(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate and of its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    text = (CERTIFICATES / f"{name}.pem").read_text()
    start = text.index("-----BEGIN CERT")
    certificate.write_text(text[start:] if start else text[: text.index("-----BEGIN PRIV")])
    key.write_text(text[:start] if start else text[text.index("-----BEGIN PRIV") :])
    return certificate, key


def test_certificate_and_key_are_read_from_one_file_or_from_two(tmp_path: Path) -> None:
    for certificate in (
        ServerCertificate(CERTIFICATES / "receiver.pem", None),
        ServerCertificate(*split("receiver", tmp_path)),
    ):
        assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    certificate, _ = split("receiver", tmp_path)
    _, other_key = split("client", tmp_path)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_text(ENCRYPTED_KEY)
    missing = tmp_path / "missing"
    cases = [
        (missing, None, f"--tls-cert {missing}: cannot be read: No such file or directory"),
        (certificate, missing, f"--tls-key {missing}: cannot be read: No such file or directory"),
        (tmp_path, None, f"--tls-cert {tmp_path}: cannot be read: Is a directory"),
        (certificate, other_key, f"--tls-cert {certificate} and --tls-key {other_key}: expected a certificate in PEM"),
        (certificate, encrypted, f"--tls-cert {certificate} and --tls-key {encrypted}: expected a certificate in PEM"),
        (certificate, None, f"--tls-cert {certificate}: expected a certificate in PEM and its unencrypted key"),
    ]
    for certificate_file, key_file, message in cases:
        with pytest.raises(ConfigError) as caught:
            ServerCertificate(certificate_file, key_file)
        assert str(caught.value).startswith(message)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--tls-key a\.key: expected --tls-cert, too"):
        read_server_certificate(None, Path("a.key"))


def test_files_for_receivers_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing, no_certificate = tmp_path / "missing", tmp_path / "text"
    no_certificate.write_text("no certificate")
    client = CERTIFICATES / "client.pem"
    cases = [
        (str(missing), ReceiverTls(cert=client), f"--ca {missing}: cannot be read"),
        (str(no_certificate), ReceiverTls(cert=client), f"--ca {no_certificate}: expected certificates of authorities"),
        (None, ReceiverTls(cert=missing), f'receivers."a".cert {missing}: cannot be read'),
        (None, ReceiverTls(cert=client, key=missing), f'receivers."a".key {missing}: cannot be read'),
        (None, ReceiverTls(cert=no_certificate), f'receivers."a".cert {no_certificate}: expected a certificate in PEM'),
        (None, ReceiverTls(cert=client, ca=missing), f'receivers."a".ca {missing}: cannot be read'),
    ]
    for ca, files, message in cases:
        with pytest.raises(ConfigError) as caught:
            read_client_tls(ca, {"a": files})
        assert str(caught.value).startswith(message)


def test_a_new_file_replaces_the_old_one_and_a_broken_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    shutil.copy(CERTIFICATES / "receiver.pem", file)
    certificate = ServerCertificate(file, None)
    first = certificate.context
    file.write_text("no certificate")
    with capture_logs() as events:
        certificate.reload()
        assert certificate.context is first
        shutil.copy(CERTIFICATES / "other_name.pem", file)
        certificate.reload()
    assert certificate.context is not first
    assert [(event["event"], event["log_level"]) for event in events] == [
        ("certificate not replaced", "warning"),
        ("certificate replaced", "info"),
    ]


def test_a_client_cannot_ask_for_another_handshake() -> None:
    context = ServerCertificate(CERTIFICATES / "receiver.pem", None).context
    assert context.options & ssl.OP_NO_RENEGOTIATION
