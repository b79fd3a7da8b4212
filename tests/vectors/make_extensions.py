"""What spec.json has of extensions: rounds of rule T13's model, as make_rounds.py has those of the core."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.vectors.make_rounds import PLAIN, Device, Events, play

from sedge_protocol.codec import Compression
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Blend, Codec, DeviceScoring, OwnModel, UpdateSelection, Work

SOME = Codec(fraction=0.4, compression=Compression.NONE)
NONE = Codec(threshold=1000.0, compression=Compression.NONE)
DITTO, APFL = OwnModel(Training(2, 0.1, prox=0.5)), OwnModel(mix=0.25, adaptive=True)
HALF = UpdateSelection(0.5, cutoff=0.0)
# Adam, everything on, and its state kept.
ADAM = Training(
    2, 0.02, optimizer="adamw", weight_decay=0.1, clip_norm=0.5, optimizer_state="keep",
    warmup_steps=3, end_factor=0.1,
)  # fmt: skip


def _asked(**work: Any) -> dict[str, Any]:
    """An order that asks for this and trains with momentum, unless it says how."""
    training = work.pop("training", Training(1, 0.05, 0.5))
    return {"work": Work(training=training, **work)}


def _cases() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    frozen = Training(2, 0.05, 0.5, freeze=("slope",), clip_norm=0.1)
    yield "X1, X13: what is frozen is not clipped", [_asked(training=frozen)]
    phases = Training(1, 0.1, freeze=("offset",)), Training(1, 0.05, prox=0.5)
    yield "X2: further trainings", [_asked(then=phases), _asked(then=phases[:1], keep=("offset",))]
    yield "X3: an own model", [_asked(own_model=DITTO)] * 2
    yield "X3, X4: a mixture that moves", [_asked(own_model=APFL)] * 2
    part = OwnModel(mix=0.5)
    nesterov = Training(1, 0.05, 0.5, nesterov=True, weight_decay=0.1, freeze=("offset",))
    yield "X4: a mixture with an optimizer", [_asked(own_model=part, training=nesterov)] * 2
    yield "X5, X6: a selection", [_asked(select=HALF)] * 2
    later = UpdateSelection(0.7, "delta", True, 0.0, True)
    yield "X5: by the change", [_asked(select=later, then=phases, keep=("offset",))]
    few = UpdateSelection(0.3, cutoff=1.0)
    yield "X5: little is above the cutoff", [_asked(select=few)]
    mixed = _asked(select=HALF, own_model=APFL)
    yield "X5: a mixture has no gradient", [mixed]
    for score in ("squared", "product", "gradient", "fisher"):
        wanted = DeviceScoring(0.6, score, "layer" if score == "product" else "none")
        scored = {**_asked(scoring=wanted), "codec": SOME}
        yield f"X8: {score}", [scored, scored]
    by_gradient = _asked(scoring=DeviceScoring(0.6, "fisher"))
    yield "X8: no gradient is left", [_asked(remember=True), by_gradient, by_gradient]
    kept = _asked(scoring=DeviceScoring(0.3, tensors=("slope",)), keep=("offset",))
    yield "X8: what is kept comes last", [kept, kept]
    patched = {**_asked(scoring=DeviceScoring(0.6)), "patch": {0: 2.0}}
    yield "X8: scores and a patch", [patched]
    yield (
        "X10: what was sent",
        [
            {**_asked(remember=True), "codec": SOME},
            {**_asked(remember=True, upload=False), "codec": SOME},
            {**_asked(), "codec": SOME},
            {**_asked(remember=True), "codec": NONE},
        ],
    )
    drift = np.array([0.5, -0.25, 0.125, 1, 3], np.float32)
    corrected = _asked(then=phases[:1]) | {"correction": drift}
    yield "X11: a correction", [corrected]
    yield "X11: and a mixture", [_asked(own_model=APFL) | {"correction": drift}]
    yield "X12a, X13, X18: Adam goes on", [_asked(training=ADAM)] * 2
    yield "X12a: a mixture forgets", [
        _asked(training=ADAM), _asked(training=ADAM, own_model=part), _asked(training=ADAM),
    ]  # fmt: skip
    yield "X12a: an evaluation does not", [
        _asked(training=ADAM), _asked(training=PLAIN) | {"task": "evaluate"}, _asked(training=ADAM),
    ]  # fmt: skip
    mean = Training(3, 0.1, 0.5, average=0.7)
    yield "X23: the mean is evaluated and kept", [_asked(training=mean, keep=("offset",))] * 2
    yield "X23: an own model's", [_asked(own_model=OwnModel(mean))] * 2
    yield "X23: a mixture has none", [_asked(training=mean, own_model=part)]
    quarters = Blend(0.75, "offset")
    patched = {**_asked(blend=quarters, keep=("seen",)), "codec": SOME, "patch": {0: 2.0}}
    yield "X26: between the own model and the start", [patched, patched]
    yield "X26: with a model of its own", [_asked(blend=quarters, own_model=DITTO)]
    yield "X27: no such bias", [_asked(blend=Blend(0.5, "head.bias"))]
    pulled = Training(4, 0.05, 0.5, prox=0.3)
    yield "X11: a correction after a prox", [_asked(training=pulled) | {"correction": drift}]


def extended_rounds() -> Events:
    """X1 to X13, X18, X23, X26 and X27, a few orders each."""
    return [play(name, Device(40 + i, 6, 4), *orders) for i, (name, orders) in enumerate(_cases())]
