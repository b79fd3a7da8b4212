"""Keys in files: made once, readable by their owner alone, and refused by name when they are none."""

import subprocess
import sys
from pathlib import Path

import pytest

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.signing import (
    new_key,
    public_hex,
    read_chain,
    read_key,
    replace_key,
    verifiers,
)
from sedge_protocol.wire.policy import key_id

# RFC 8032, section 7.1, test 3.
PUBLIC = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
SIGNATURE = (
    "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
    "4a7c15e9716ed28dc027beceea1ec40a"
)


def test_a_key_is_its_owners_alone_and_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    public = new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public_hex(read_key(path)) == public
    with pytest.raises(ConfigError, match="expected a file that does not exist yet"):
        new_key(path)


def test_the_rfcs_signature_is_good_and_no_other() -> None:
    (name,), (verify,) = zip(*verifiers([PUBLIC]).keys.items(), strict=True)
    assert name == key_id(bytes.fromhex(PUBLIC))
    signature = bytes.fromhex(SIGNATURE)
    assert verify(signature, b"\xaf\x82")
    assert not verify(signature, b"\xaf\x83")
    assert not verify(bytes([signature[0] ^ 1]) + signature[1:], b"\xaf\x82")
    assert not verify(b"", b"\xaf\x82")


@pytest.mark.parametrize("text", ["", "x", PUBLIC[:-2], PUBLIC + "00", " " + PUBLIC[1:]])
def test_a_text_that_is_no_public_key(text: str) -> None:
    with pytest.raises(ConfigError, match="expected 64 hex digits"):
        verifiers([text])


@pytest.mark.parametrize("algorithm", ["rsa", "ec -pkeyopt ec_paramgen_curve:P-256", "none"])
def test_a_file_that_holds_no_such_key(tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN PRIVATE KEY-----\nnone\n-----END PRIVATE KEY-----\n")
    if algorithm != "none":
        words = ["openssl", "genpkey", "-algorithm", *algorithm.split(), "-out", str(path)]
        subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(ConfigError, match="expected an Ed25519 key in PEM") as raised:
        read_key(path)
    assert path.read_text().splitlines()[1] not in str(raised.value)


def test_replacements_make_a_chain_which_is_read_beside_the_newest_key(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    public = [new_key(path) for path in (first, second, third)]
    assert replace_key(first, second) == tmp_path / "second.chain"
    path = replace_key(second, third)
    pinned, chain = verifiers(public[:1]), read_chain(third)
    (counting,) = pinned.after(pinned.learned({}, chain))
    assert counting == key_id(bytes.fromhex(public[2])) and len(chain) == 2
    for old, new, why in (
        (first, first, "a key other than"),
        (first, third, "not replaced another"),
    ):
        with pytest.raises(ConfigError, match=why):
            replace_key(old, new)
    for text in (path.read_text()[:-2], "x"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="expected a chain as"):
            read_chain(third)


def test_an_agent_without_pinned_keys_does_not_load_the_library() -> None:
    code = (
        "import sys; import sedge_edge.__main__; from sedge_protocol.host.signing import verifiers; "
        "verifiers(()); sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
