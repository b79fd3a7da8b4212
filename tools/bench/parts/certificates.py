"""Creates a certificate authority and certificates with the openssl command."""

import subprocess
from pathlib import Path


def make_ca(folder: Path, name: str) -> None:
    """Create a certificate authority."""
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    _openssl(
        folder, "req", "-x509", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}",
        "-days", "2", "-out", f"{name}.crt",
    )  # fmt: skip


def make_certificate(folder: Path, name: str, ca: str, alternative: str = "") -> None:
    """Create a certificate for ``name``, signed by the authority ``ca``."""
    _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    _openssl(
        folder, "req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr"
    )
    (folder / "extension").write_text(f"subjectAltName={alternative}\n" if alternative else "\n")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key",
        "-CAcreateserial", "-days", "2", "-extfile", "extension", "-out", f"{name}.crt",
    )  # fmt: skip


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
