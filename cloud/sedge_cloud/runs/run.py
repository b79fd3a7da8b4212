"""One run: its decoded row, with everything needed to plan and close its rounds."""

import hashlib
from functools import cached_property
from typing import TypeVar

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.privacy import PrivacyBudget
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import RunRow
from sedge_cloud.store.schema import StepRow
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategy import EVERY_ELEMENT, Strategy, Width
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.bundle import BundleManifest, unpack
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.work import Codec

R = TypeVar("R")


class StrategyState(msgspec.Struct, frozen=True):
    """A strategy's last ``State``, with blobs in place of vectors; ``round`` counts the rounds closed.

    ``model`` is the blob of the exact whole global model. ``steps`` lead to it from earlier models, oldest
    first, as far back as sending them is worthwhile. ``owed`` is the blob of the change that they left out,
    n float32 little endian, or empty. ``groups`` is the blob of ``State.groups`` in MessagePack, or empty.
    ``policy`` holds the run's signed policy itself, or is empty. ``budget`` is set in a run with [privacy].
    """

    model: bytes
    model_hash: bytes
    initial: bytes
    round: int = 0
    arrays: bytes = b""
    owed: bytes = b""
    steps: tuple[StepRow, ...] = ()
    groups: bytes = b""
    policy: bytes = b""
    budget: PrivacyBudget | None = None

    def blobs(self) -> set[bytes]:
        """Return all blobs that the state names."""
        steps = {step.blob for step in self.steps}
        return {self.model, self.initial, self.arrays, self.owed, self.groups} | steps


class Run:
    """One run, with everything needed to plan and close its rounds.

    ``bundles`` and ``manifests`` have one item per width, the whole model's first; ``manifest`` is that
    first one.
    """

    def __init__(self, row: RunRow, store: Rows) -> None:
        self.name, self.created = row.run, row.created
        self.status = row.status
        self.coded_config = row.config
        self.config = _read(row, row.config, RunConfig)
        self.state = state_of(row)
        blobs = row.bundles
        try:
            packed = [store.blobs.read(blob) for blob in blobs]
            forms = [unpack(blob) for blob in packed]
        except (StorageError, CodecError) as exc:
            raise StorageError(f"run {row.run}: its bundle cannot be read: {exc}") from exc
        self.manifests = [form.manifest for form in forms]
        self.manifest_hashes = tuple(form.manifest_hash for form in forms)
        self.manifest: BundleManifest = self.manifests[0]
        self.bundles: tuple[Manifest, ...] = tuple(map(describe, packed))
        self._blobs = store.blobs
        self.widths = tuple(Width(form.dropped, form.layout) for form in self.manifests)

    def is_current(self, row: RunRow) -> bool:
        """Return True if the run's fixed properties and its policy are still those of its row."""
        try:
            policy = state_of(row).policy
        except StorageError:
            return False  # loading the run anew raises this error, where it is reported
        found = row.created, row.config, policy
        return found == (self.created, self.coded_config, self.state.policy)

    @cached_property
    def strategy(self) -> Strategy:
        """Return the run's algorithm, created on first use: an ended run can answer offers without it.

        Raises ``ConfigError`` if it cannot be created, for example because a user's class is missing.
        """
        return make_strategy(self.config.strategy, self.config.options)

    @property
    def codec(self) -> Codec:
        """Return how devices encode their updates unless the run file says otherwise.

        In a private run they send every element. Such a run has no error feedback, so elements that are
        left out would be lost.
        """
        return self.strategy.codec if self.config.privacy is None else EVERY_ELEMENT

    def model_bytes(self) -> int:
        """Return the size of the global model's blob; 0 if the disk has lost it."""
        model = self.state.model
        return self._blobs.size(model) if self._blobs.has(model) else 0

    @property
    def patch_values(self) -> ValueCoding:
        """Return how patches and start vectors are encoded."""
        return self.config.patch.values or self.strategy.patch_values

    def remarks(self, personal: int | None = None) -> tuple[str, ...]:
        """Return the strategy's remarks on its options with this model (``Strategy.remarks``)."""
        return self.strategy.remarks([width.layout for width in self.widths], personal)

    def layout(self, width: int) -> Layout:
        """Return the layout of one of the run's widths; 0 is the whole model."""
        return self.widths[width].layout


def order_seed(seed: int, number: int, device: str) -> int:
    """Return the seed for one device's shuffles in one round, below 2**63."""
    digest = hashlib.sha256(f"{seed}/{number}/{device}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def state_of(row: RunRow) -> StrategyState:
    """Decode a run's state. Raises ``StorageError`` when it cannot be read."""
    return _read(row, row.state, StrategyState)


def _read(row: RunRow, coded: bytes, kind: type[R]) -> R:
    """Decode a column of a run's row. Raises ``StorageError`` when it cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=kind)
    except ValueError as exc:  # msgspec's errors are ValueErrors
        raise StorageError(f"run {row.run}: its row cannot be read: {exc}") from exc
