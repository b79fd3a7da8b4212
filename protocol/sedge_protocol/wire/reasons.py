"""The reason codes of messages, and a comparison of free-text reasons."""

import re
from collections.abc import Mapping

# The meaning of each code, grouped by message kind. This is the table of WIRE.md, rule 10.1.
REASONS: Mapping[str, Mapping[str, str]] = {
    "REJECT": {
        "unknown-run": "There is no such run.",
        "unknown-round": "The round has no order for this device.",
        "stale": "The round closed more than 3 rounds ago: the model it started from is gone.",
        "too-large": "It is larger than any update of this model can be.",
        "duplicate": "Another update of this device was counted for this round.",
        "mismatch": "It is not what was ordered.",
        "malformed": "Its bytes break a rule, do not match its manifest, or produce a model that is "
        "not finite.",
        "lost": "It was accepted, but the coordinator's disk has lost it since.",
        "invalid": "It claims no training examples, or a share that is not between 0 and 1.",
    },
    "REFUSED": {
        "version": "The two sides have no protocol version in common; `detail` lists both sides' versions.",
        "incarnation": "The frame's start count is below one received before.",
        "revoked": "The device was revoked: its frames are ignored until it is reissued.",
        "unable": "A run has no work for the device: `detail` names the run and what the device lacks "
        "(10.2).",
    },
    # For DECLINE, the code is the name of the device's error; later versions may add others.
    "DECLINE": {
        "BodyError": "The order has a value that the device does not know.",
        "CodecError": "The model, patch or bundle does not match the order, or the device cannot do what "
        "the order asks for.",
        "DataError": "The device's data do not fit the bundle.",
        "MessageTooLarge": "The update does not fit into packets that the brokers accept (7.5).",
        "OutOfMemory": "The device does not have enough memory.",
        "PolicyError": "The order has no policy signed by a key that the device pins, or it asks for more "
        "than its policy allows (spec/policy.md).",
        "TooManyOrders": "The device's owner allows fewer orders per hour.",
        "TooManyRuns": "Every run that the device keeps is in use (5.12).",
        "TooManyStarts": "The device began the order in three of its starts but never finished it (10.3).",
        "TrainingDiverged": "The training produced numbers that are not finite (T8).",
    },
}
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
# Matches the folders of an absolute path, but not the path of a URL.
_FOLDERS = re.compile(r"""(?<![A-Za-z0-9_:/.\]])/(?:[^\s/'"]+/)+(?=[^\s/'",;:)])""", re.ASCII)


def without_numbers(reason: str) -> str:
    """Return the reason with each number replaced by "#".

    This way "temperature 71.3 °C, limit 70" is still the same reason half a degree later.
    """
    return _NUMBER.sub("#", reason)


def without_paths(text: str) -> str:
    """Return the text with only the last part of each absolute path. A device's folders are private."""
    return _FOLDERS.sub("", text)
