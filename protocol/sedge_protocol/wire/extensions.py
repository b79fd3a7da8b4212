"""The extension names of spec/extensions.md.

An order may use only extensions that its device announced (rule 5.9).
"""

from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import BodyError
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.refusals import UNANNOUNCED
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work

# The order includes a vector that the device adds to every gradient.
CORRECTION = "correction"
# The features that an order can ask for in addition to one plain training phase.
FEATURES = (
    "freeze", "phases", "own_model", "select", "scoring", "remember", "choice", "blend", CORRECTION,
    "optimizer", "schedule", "average", "settings", "arrays", "loss",
)  # fmt: skip
# Every device supports these value codings. If it supports others, it must announce them.
COMMON_VALUES = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8)


def needed_by_work(work: Work, training: Training) -> frozenset[str]:
    """Return the extensions that a device needs for this work.

    ``training`` is the round's training, which the work may override.
    """
    trainings = (work.training or training, *work.trainings)
    wanted = {
        "schedule": any(phase.schedules_steps for phase in trainings),
        "average": any(phase.average for phase in trainings),
        "optimizer": not all(phase.plain for phase in trainings),
        "freeze": any(phase.freeze for phase in trainings),
        "phases": bool(work.then),
        "own_model": work.own_model is not None,
        "select": work.select is not None,
        "scoring": work.scoring is not None,
        "remember": work.remember,
        "choice": work.choice is not None,
        "settings": bool(work.settings),
        "arrays": bool(work.returns or (work.arrays and not work.loss)),
        "blend": work.blend is not None,
        "loss": bool(work.loss),
    }
    return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)


def needed_by_order(order: Order) -> frozenset[str]:
    """Return the extensions that an order uses, except ``frozen``, which depends on the bundle."""
    wanted = {
        CORRECTION: order.correction is not None,
        "select": bool(order.context) or order.patch_context is not None,
        order.codec.values.value: order.codec.values not in COMMON_VALUES,
    }
    needed = needed_by_work(order.work, order.training)
    return needed | {feature for feature, is_wanted in wanted.items() if is_wanted}


def unannounced(order: Order, announced: frozenset[str]) -> BodyError | None:
    """Return why a device that announced these extensions cannot read an order, or None if it can."""
    if not (lacking := needed_by_order(order) - announced):
        return None
    where = f"run {order.run}, round {order.round}"
    why = UNANNOUNCED.format(where=where, words=", ".join(sorted(lacking)))
    return BodyError(Kind.ORDER.name, b"", why)
