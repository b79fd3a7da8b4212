"""How long a round waits for a device that has died: seconds from the broker's word of it to the closing.

    python -m tools.bench.silent_death

The coordinator's core, in the time of its own clock, with the default quorum of 1: three devices, of which
two answer and one dies, with the default ``offline_grace_s`` and with one as long as the deadline, which is
how it was without. The last line is JSON.
"""

import argparse
import json
import tempfile
from pathlib import Path

import msgspec
from tests.cloud.helper import CONFIG, Cloud, a_hello

from sedge_protocol.wire.messages import Goodbye

STEP_S = 0.5


def waits_s(folder: Path, offline_grace_s: float) -> float:
    """How long the round stays open after the last device's will has come."""
    config = msgspec.structs.replace(CONFIG, min_updates=2, offline_grace_s=offline_grace_s)
    cloud = Cloud(folder, config, ("a", "b", "c"))
    for name in "abc":
        cloud.say(name, a_hello(name))
    cloud.poll(60.0)  # nobody is waited for any more
    cloud.answer("a", "b")
    cloud.say("c", Goodbye(a_hello("c").nonce))
    began = cloud.now
    while not cloud.summaries():
        cloud.poll(STEP_S)
    return cloud.now - began


def main() -> None:
    """Print both waits and a line of JSON."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        with_grace = waits_s(Path(name) / "with", CONFIG.offline_grace_s)
        without = waits_s(Path(name) / "without", CONFIG.deadline_s)
    print(
        f"a round closes {with_grace:.1f} s after a death; at its deadline it would be {without:.1f}"
    )
    print(json.dumps({"bench": "silent_death", "with_grace_s": with_grace, "without_s": without}))


if __name__ == "__main__":
    main()
