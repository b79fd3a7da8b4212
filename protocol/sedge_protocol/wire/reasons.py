"""The reason codes of messages, and the comparison of reasons that are written for people."""

import re
from collections.abc import Mapping

# What each code means, by the kind of the message: the table of WIRE.md, rule 10.1.
REASONS: Mapping[str, Mapping[str, str]] = {
    "REJECT": {
        "unknown-run": "There is no such run.",
        "unknown-round": "The round has no order for this device.",
        "stale": "The round closed more than 3 rounds ago: the model it started from is gone.",
        "too-large": "It is larger than any update of this model.",
        "duplicate": "Another update of this device was counted for this round.",
        "mismatch": "It is not what was ordered.",
        "malformed": "Its bytes break a rule, are not those of its manifest, or make a model that is "
        "not finite; or the coordinator's disk has lost them since.",
        "invalid": "It claims no training examples, or a share outside of 0 and 1.",
    },
    "REFUSED": {
        "version": "The two have no version of the protocol in common; `detail` names both sides'.",
        "incarnation": "The frame's start count is below one that was heard before.",
        "revoked": "The device was revoked: it is not heard any more until it is issued anew.",
        "unable": "A run has no work for the device: `detail` names the run and what the device lacks "
        "(10.2).",
    },
    # The name of the device's error; others may come.
    "DECLINE": {
        "BodyError": "The order has a value that the device does not know.",
        "CodecError": "Model, patch or bundle are not what the order says, or the device cannot do what "
        "is asked.",
        "DataError": "The device's data do not fit the bundle.",
        "MessageTooLarge": "The update does not fit the packets that the brokers let through (7.5).",
        "OutOfMemory": "The device's memory does not suffice.",
        "PolicyError": "No key that the device pins has signed for the order, or it asks for more than its "
        "signed policy allows (spec/policy.md).",
        "TooManyOrders": "The device's owner lets it take on fewer orders in an hour.",
        "TooManyRuns": "Every run that the device keeps is in use (5.12).",
        "TooManyStarts": "The order was begun in three starts of the device and never ended (10.3).",
        "TrainingDiverged": "The training left the range of finite numbers (T8).",
    },
}
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")


def without_numbers(reason: str) -> str:
    """The reason with "#" in place of each number.

    So "temperature 71.3 °C, limit 70" remains the same reason half a degree later.
    """
    return _NUMBER.sub("#", reason)
