"""TLS to the broker: client certificates with a key derived from a secret, and reasons for their refusal.

The rules are E18 and E19 of spec/enrolment.md.
"""

import re
import ssl
from collections.abc import Callable
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from sedge_protocol.errors import ConfigError, os_reason
from sedge_protocol.wire.joining import certificate_key
from sedge_protocol.wire.reconnect import Ended

# The meaning of each TLS alert that concerns our own certificate.
REFUSED = {
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REVOKED": "our certificate was revoked",
    "CERTIFICATE_REQUIRED": "it requires a certificate (broker.cert_file), but we have none",
    "BAD_CERTIFICATE": "our certificate is damaged, or not yet valid by the broker's clock",
    "UNKNOWN_CA": "our certificate was issued by another authority",
    "DECRYPT_ERROR": "our certificate was issued by another authority",
}
# How OpenSSL names an alert in the text of an error.
_ALERT = re.compile(r"\[SSL: \w*_ALERT_(\w+)\]")
# The DER encoding of a P-256 ECPrivateKey (RFC 5915) around the 32 bytes of the key. OpenSSL computes the
# public key.
_BEFORE, _AFTER = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")


def alert_in(text: str) -> str:
    """Return the TLS alert that an error's text names, or "" if it names none."""
    found = _ALERT.search(text)
    return found[1] if found else ""


def last_alert(sock: Any) -> str:
    """Return the TLS alert that a broken connection's socket still holds, or "" if there is none."""
    try:
        sock.recv(1)
    except (OSError, ValueError) as exc:
        return alert_in(str(exc))
    return ""


def client_pem(secret: bytes, certificate: bytes) -> str:
    """Return the private key derived from a secret, followed by its certificate (DER), in PEM."""
    key = _BEFORE + certificate_key(secret).to_bytes(32) + _AFTER
    text = ssl.DER_cert_to_PEM_cert(key).replace("CERTIFICATE", "EC PRIVATE KEY")
    return text + ssl.DER_cert_to_PEM_cert(certificate)


def certificate_in(text: str, key: str, found: str) -> bytes:
    """Return the certificate (DER) in a PEM text.

    Raises ``ConfigError``, which names the configuration's ``key``.
    """
    try:
        return ssl.PEM_cert_to_DER_cert(text.strip())
    except ValueError as exc:
        raise ConfigError(key, found, "a certificate in PEM") from exc


class Files(NamedTuple):
    """A link's TLS files: the certificate authority of the broker, our certificate, and its key."""

    ca: str | None
    certificate: str | None
    key: str | None


NO_FILES = Files(None, None, None)


def load(
    tls_set: Callable[[str | None, str | None, str | None], None], files: Files, pem: str | None
) -> None:
    """Pass the TLS files to paho. If ``pem`` is given, it replaces our certificate and key.

    Raises ``ConfigError``.
    """
    try:
        if pem is None:
            tls_set(*files)
        else:
            with NamedTemporaryFile("w") as own:  # ssl loads a key only from a file
                own.write(pem)
                own.flush()
                tls_set(files.ca, own.name, None)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise ConfigError("broker", [*files], f"readable certificate files ({exc})") from exc


def ended(error: Exception) -> Ended:
    """Classify a failed attempt to connect by what it reveals about the network."""
    if isinstance(error, ConnectionRefusedError | ConnectionResetError | ssl.SSLEOFError):
        return Ended.REFUSED
    return Ended.TURNED_AWAY if isinstance(error, ssl.SSLError) else Ended.UNANSWERED


def unreachable(error: OSError | ValueError, uses_tls: bool, guesses: bool) -> str:
    """Explain why a connection failed. With ``guesses``, also guess which protocol the server speaks."""
    why = os_reason(error) if isinstance(error, OSError) else str(error)
    if guesses and "WebSocket" in why:
        return f"{why} (is it a port for websockets?)"
    hung_up = isinstance(error, ConnectionResetError | ssl.SSLEOFError)
    answered = isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"
    if guesses and uses_tls and (hung_up or answered):
        return f"{why} (is it a port without TLS, mqtt?)"
    return why
