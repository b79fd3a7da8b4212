"""The work of an order: what a strategy asks of a device in one round.

The string below a field becomes its row in the tables of the specification (``make spec``).
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.programs import GUIDED
from sedge_protocol.wire.training import Name, Names, Training
from sedge_protocol.wire.transfer import Manifest

Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# The maximum number of training phases in one order, not counting the first. FedRep has one.
MAX_PHASES = 8
# Limits on the data exchanged between a device's own training function and a strategy, in each direction:
# on named numbers and strings, on named arrays, and on the total bytes of the arrays' values.
MAX_SETTINGS = 32
MAX_ARRAYS = 16
MAX_ARRAY_BYTES = 2**15
Setting: TypeAlias = (
    bool
    | Annotated[int, Meta(ge=-(2**53), le=2**53)]
    | float
    | Annotated[str, Meta(max_length=256)]
)
Settings: TypeAlias = Annotated[dict[str, Setting], Meta(max_length=MAX_SETTINGS)]
PackedArray: TypeAlias = Annotated[bytes, Meta(max_length=MAX_ARRAY_BYTES)]
PackedArrays: TypeAlias = Annotated[dict[str, PackedArray], Meta(max_length=MAX_ARRAYS)]
Length: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_ARRAY_BYTES // 4)]
Lengths: TypeAlias = Annotated[dict[str, Length], Meta(max_length=MAX_ARRAYS)]


class OwnModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The personal model, a second model, which stays on the device.

    The device evaluates and predicts with it. Its training continues from where it last ended, or at first
    from the round's start vector. It is trained after the model that is sent, and ``prox`` pulls it towards
    the round's start vector (Ditto). With ``mix`` below 1, the device evaluates a mixture instead, mix *
    own + (1 - mix) * sent. The mixture's gradient trains the personal component, own; both components are
    trained together, step by step, in the order's first training phase (APFL).
    """

    training: Training = Training()
    """How the personal model is trained, unless it is part of a mixture."""
    mix: Share = 1.0
    """The personal component's share of the mixture; 1: no mixture, unless ``adaptive``."""
    adaptive: bool = False
    """Whether the device also trains ``mix``, by gradient descent, and reports its final value."""

    @property
    def mixes(self) -> bool:
        """True for a mixture. The ``mix`` of an adaptive mixture may have reached 1."""
        return self.mix < 1 or self.adaptive


class UpdateSelection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device sends the elements on which its loss depends most, tensor by tensor (FedPURIN, FedCAC).

    Every element of the trained model has c = |g theta|, or |-g theta + (g theta)^2 / 2| with ``hessian``.
    From each parameter tensor, except those that it keeps to itself, the device sends the elements with the
    largest c, including all that tie with the last of them. If the last one's c is not above ``cutoff``, it
    sends all elements above ``cutoff`` instead. The codec's own fraction, threshold and error feedback do
    not apply.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """The share of each tensor's elements that is sent, rounded down."""
    gradient: Literal["last", "delta"] = "last"
    """``last``: g is the gradient of the last batch's mean loss, before its step, as the program
    returns it, but 0 in tensors that ``freeze`` names; ``delta``: g is trained - start."""
    hessian: bool = False
    """Whether to add the second-order term to c."""
    cutoff: Share = 1e-10
    """Elements with c at or below this number, rounded to binary32, are not sent."""
    half: bool = False
    """Whether to round g first to the nearest binary16 from -65504 to 65504, as in the authors' code."""


class DeviceScoring(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device finds its personal elements itself, by scoring the model that it trained last.

    FedOBP uses it with ``scoring = "device"``: the update is then coded against the global model.
    ``importance.py`` computes the scores.
    """

    quantile: Share
    """Elements that score above this quantile of all scores are personal."""
    score: Literal["squared", "product", "gradient", "fisher"] = "squared"
    """``squared``: (own - model)²; ``product``: abs((own - model) · own); ``gradient``: abs(g);
    ``fisher``: g², where g is the gradient ``last`` of X5, from the previous order."""
    norm: Literal["none", "global", "layer"] = "none"
    """``layer`` replaces a score by (score - least) / (greatest - least) within its tensor, or by 0
    if all are equal; ``global`` is ``none``."""
    tensors: Names = ()
    """The tensors that are scored; empty: all tensors with the role ``parameter``."""


class PatchChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device tests its patch on examples that it does not train on, to decide whether to apply it.

    It applies the patch if that gives a better metric, or the same metric and a lower loss.
    """

    holdout: Annotated[float, Meta(gt=0, lt=1)]
    """The share of the training examples that is held out; the report's ``num_examples`` counts the
    others."""
    seed: Seed = 0
    """The seed that selects the held-out examples; the same in every order of a run."""


class Blend(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device predicts with mix * own + (1 - mix) * theta.

    own is the model that it last predicted with; theta is the start before training and the trained model
    after it. A device that has no such model yet uses theta alone. The device may add the logarithms of its
    class shares to the bias of the head of the start; it does so if that gives a better metric on its
    training examples, or the same metric and a lower loss. Blending does not change what is trained and
    sent.
    """

    mix: Annotated[float, Meta(ge=0, lt=1)]
    """The share of the device's own last model."""
    prior: Name = ""
    """The bias of the head, one element per class; empty: nothing is added."""


class Codec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device encodes its update.

    The values are rounded to a grid (codec/grid.py) when they are in bf16, ``fraction`` is below 1 and
    ``error_feedback`` is on.
    """

    values: ValueCoding = ValueCoding.FP32
    """The precision of the values; ``int4`` and ``sign`` are extensions."""
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of the elements that is sent, the largest in magnitude; at least one element."""
    threshold: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Of the elements that ``fraction`` selects, only those of at least this magnitude are sent; 0: all."""
    compression: Compression = Compression.ZSTD
    """How the coded vector is compressed."""
    error_feedback: bool = True
    """Whether the next round's delta includes what was not sent (T9)."""


class Step(msgspec.Struct, frozen=True):
    """A coded delta that turns one version of the global model into the next one."""

    base_hash: Hash
    """The version that the delta is added to."""
    blob: Manifest
    """The delta, a coded vector."""


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a strategy asks of a device in one round, in addition to the vector that it starts from.

    If ``training`` is None, the device trains with the run's settings when the work comes from a strategy,
    and with the defaults when it is in an order.
    """

    keep: Names = ()
    """The tensors that the device takes from its own last model (T1) and whose delta it sends as 0 (T3)."""
    upload: bool = True
    """Whether the update has a payload; without one the device sends only metrics."""
    training: Training | None = None
    """How the device trains; nil: with the defaults."""
    then: Annotated[tuple[Training, ...], Meta(max_length=MAX_PHASES)] = ()
    """Extension ``phases``: further training phases, each of which continues from the one before."""
    own_model: OwnModel | None = None
    """Extension ``own_model``: a second model, which stays on the device."""
    select: UpdateSelection | None = None
    """Extension ``select``: which elements of the update the device sends."""
    scoring: DeviceScoring | None = None
    """Extension ``scoring``: how the device itself finds its personal elements."""
    choice: PatchChoice | None = None
    """Extension ``choice``: how the device decides whether to apply its patch."""
    blend: Blend | None = None
    """Extension ``blend``: the device predicts with a mean over its rounds."""
    remember: bool = False
    """Extension ``remember``: the device keeps what it sent as a patch that a later order can name."""
    loss: Annotated[str, Meta(max_length=256)] = ""
    """Extension ``loss``: the name of the bundle's guided loss, which trains the model that is sent; empty:
    the bundle's own loss."""
    settings: Settings = {}
    """Extension ``settings``: numbers and strings by name, for the device's own training function."""
    arrays: PackedArrays = {}
    """Extension ``arrays``: small arrays by name, each as float32, little endian."""
    returns: Lengths = {}
    """Extension ``arrays``: the arrays that the update must have, each with its number of elements."""

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The settings of all training phases, in order. Those of the personal model come last."""
        first = (self.training,) if self.training is not None else ()
        own = (self.own_model.training,) if self.own_model is not None else ()
        return (*first, *self.then, *own)

    @property
    def program(self) -> str:
        """The name of the bundle's program that trains the sent model."""
        return GUIDED if self.loss else "gradient"

    def vectors(self, training: Training) -> int:
        """Return the maximum number of vectors of the model's size that a job needs.

        ``training`` is the run's training, which applies if the work has none of its own.
        """
        first, own = self.training or training, self.own_model
        held = 1 + max(each.vectors for each in (first, *self.trainings))
        held += bool(self.choice) + bool(self.loss)
        held += 2 * sum(map(bool, (self.then, self.select, self.scoring)))
        held += 0 if self.blend is None else 2 + bool(self.blend.prior)
        if first.keeps_state:
            held += 1 + first.state_vectors
        if own is not None:
            held += 4 + first.state_vectors if own.mixes else 2
        return held
