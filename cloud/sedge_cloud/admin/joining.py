"""Creates the tokens that devices join with, and the broker accounts for tokens and joined devices.

``settle`` brings the broker's files up to date with the rows, for all devices at once. The service calls it
every second if it may write those files; otherwise commands run by root call it.
"""

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from secrets import token_hex
from ssl import DER_cert_to_PEM_cert

from sedge_cloud.admin.certifying import (
    certify,
    certify_token,
    is_renewal_due,
    renew_due,
)
from sedge_cloud.admin.enrolment import reload_broker
from sedge_cloud.broker.access import access_file, forget_tokens, shut_in
from sedge_cloud.broker.accounts import add_passwords, remove_passwords
from sedge_cloud.config import CloudConfig
from sedge_cloud.store.database import Store
from sedge_cloud.store.joins import KEPT_S, tags_coded
from sedge_cloud.store.rows import TokenRow
from sedge_cloud.store.tags import MAX_TAGS, check_tag
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.broker_url import parse_url
from sedge_protocol.host.disk import translated
from sedge_protocol.host.enrolment import Token
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.joining import TOKEN_PREFIX, fleet_key, public_key
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.topics import check_id

# The service touches this file in its state folder to make root run ``settle``.
WANTED = "accounts-wanted"
MAX_USES = 100_000


def make_token(
    store: Store,
    cloud: CloudConfig,
    uses: int,
    expires_s: float,
    tags: Mapping[str, str],
    accepts: bool,
    device: str,
) -> TokenRow:
    """Create a token and its broker account. The caller must reload the broker.

    Raises ``ConfigError`` for invalid values, and ``StorageError``.
    """
    if not 1 <= uses <= (1 if device else MAX_USES):
        raise ConfigError("--count", uses, "1 with --device" if device else f"1 to {MAX_USES}")
    if len(tags) > MAX_TAGS:
        raise ConfigError("--tags", f"{len(tags)} tags", f"at most {MAX_TAGS}")
    for key, value in tags.items():
        check_tag(key, value)
    if device:
        check_id(device, "--device")
    secret, now = os.urandom(SECRET_BYTES), time.time()
    row = TokenRow(
        f"{TOKEN_PREFIX}{token_hex(6)}", secret, device, tags_coded(tags), uses, accepts,
        now, now + expires_s, account=cloud.broker.device_password_file is not None,
    )  # fmt: skip
    if cloud.broker.device_password_file is not None:
        with as_caller():
            add_passwords(
                Path(cloud.broker.device_password_file), {row.token: DeviceKeys.of(secret).password}
            )
            shut_in(cloud, row.token)
    # The certificate outlives the token: devices that are still pending when the token expires may join
    # with it.
    certify_token(store, cloud, row.token, secret, row.expires + KEPT_S)
    store.add_token(row)
    return row


def token_text(store: Store, cloud: CloudConfig, row: TokenRow) -> str:
    """Format a token as the line for ``sedge-edge join`` (enrolment.md, E8). Raises ``StorageError``."""
    broker, ca = cloud.broker, None
    url = broker.device_url or broker.url
    if parse_url(url).tls and broker.ca_file is not None:
        with as_caller(), translated("read", Path(broker.ca_file)):
            ca = Path(broker.ca_file).read_text(errors="replace")
    point = public_key(fleet_key(store.secret())).hex()
    key, trust, own = row.secret.hex(), cloud.trust.keys, store.certificate(row.token)
    pem = None if own is None else DER_cert_to_PEM_cert(own.der)
    return Token(row.token, cloud.fleet, url, key, point, ca, row.device, trust, pem).join_text()


def settle(store: Store, cloud: CloudConfig) -> int:
    """Create broker accounts for accepted devices, and delete the accounts of spent tokens.

    A token is spent if it was revoked, or has expired and no device is still joining with it.

    Devices that are changing their secret get their new passwords. If this machine has the authority's key,
    accepted devices get certificates, and certificates that are due are renewed. Returns how many devices
    may now be told that they are accepted. If the process is killed at any point, the next call completes
    the work. A coordinator without the broker's password file leaves all of this to the coordinator that
    has it, and only admits devices whose accounts the operator creates by hand. Raises ``StorageError``.
    """
    now = time.time()
    joins, spent = store.joins(["accepted"]), [row.token for row in store.spent_tokens(now)]
    renewals = store.renewals_due()
    if cloud.broker.device_password_file is None:
        by_hand = {row.token for row in store.tokens() if not row.account} if joins else set[str]()
        joins, spent, renewals = [join for join in joins if join.token in by_hand], [], []
    renew_due(store, cloud)
    if not joins and not spent and not renewals:
        return 0
    if cloud.broker.device_password_file is not None:
        path = Path(cloud.broker.device_password_file)
        with as_caller():
            names = {join.device for join in joins} | {row.device for row in renewals}
            _give_passwords(store, path, names)
            if spent:
                remove_passwords(path, spent)
                forget_tokens(cloud, spent)
        certify(store, cloud, {join.device: join.secret for join in joins}, spent)
        reload_broker(cloud)
    store.admit_joins(join.point for join in joins)
    store.give_passwords(renewals)
    store.end_accounts(spent, now)
    return len(joins)


def _give_passwords(store: Store, path: Path, names: Collection[str]) -> None:
    """Write the passwords derived from the secrets in the rows. Raises ``StorageError``.

    A command or another coordinator may change the rows and the password file at any moment. A process that
    changes a row therefore writes the file afterwards, and a process that writes the file reads the rows
    again.
    """
    given: dict[str, bytes] = {}
    while (secrets := store.broker_secrets(names)) != given:
        changed = {name: secret for name, secret in secrets.items() if given.get(name) != secret}
        if changed:
            add_passwords(
                path, {n: DeviceKeys.of(secret).password for n, secret in changed.items()}
            )
        if revoked := given.keys() - secrets.keys():
            remove_passwords(path, revoked)
        given = secrets


def is_due(store: Store, cloud: CloudConfig) -> bool:
    """Return True if ``settle`` has passwords or certificates to issue. Raises ``StorageError``."""
    waits = store.joins(["accepted"]) or store.renewals_due()
    return bool(waits) or is_renewal_due(store, cloud)


def may_settle(cloud: CloudConfig) -> bool:
    """Return True if this process may write the broker's files and read any authority key."""
    path, key = cloud.broker.device_password_file, cloud.broker.authority_key_file
    if path is None:
        return True
    return os.access(Path(path).parent, os.W_OK) and (key is None or os.access(key, os.R_OK))


def by_hand(cloud: CloudConfig, row: TokenRow) -> list[str]:
    """Return what the operator must do for a token's account if the broker's files are elsewhere."""
    if cloud.broker.device_password_file is not None:
        if access_file(cloud) is not None:
            return []
        return [f"Deny {row.token} access to {_SHARED} at the broker."]
    password = DeviceKeys.of(row.secret).password
    account = f"an account {row.token} with the password {password}"
    return [
        "This machine does not keep the broker's passwords (broker.device_password_file), so the broker",
        "does not know this token. Run `device token add` on the broker's host instead, where devices",
        "that join also get accounts. Otherwise, by hand:",
        f"Give the broker {account}, which may not read {_SHARED}.",
    ]


_SHARED = "sedge/1/FLEET/blob/# and sedge/1/FLEET/shard/+"


def require_settled(store: Store, cloud: CloudConfig) -> None:
    """Call ``settle``. If it fails, the ``StorageError`` says that the device has already been accepted."""
    try:
        settle(store, cloud)
    except StorageError as exc:
        raise StorageError(f"{exc}; the device is accepted, and joins once that is fixed") from exc
