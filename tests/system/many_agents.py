"""Many agents in one process, each with its own folder and link, that train by ``client.py``'s functions.

    python -m tests.system.many_agents FOLDER

FOLDER has a folder for each device, as ``sedge-cloud device add`` writes it, and ``client.py``.
"""

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from sedge_edge.agent import Identity
from sedge_edge.backends import UserCode
from sedge_edge.config import load_config
from sedge_edge.data import LiveData
from sedge_edge.runtime import OpenBundles, Runtime, open_agent, pooled_runtime
from sedge_edge.training.job import CODECS
from sedge_protocol.codec import Compression
from sedge_protocol.host.loop import Loop
from sedge_protocol.wire.messages import Hello


def bring_up(home: Path, pool: ThreadPoolExecutor, loop: Loop) -> Runtime:
    """The agent of one device, as ``sedge-edge run`` has it."""
    config = load_config(home / "edge.toml")
    examples = LiveData(config.data, home)
    train, test = examples()
    counts = len(train.targets), len(test.targets)
    hello = Hello(bytes(16), "many", ("function",), tuple(Compression), CODECS, *counts)
    identity = Identity(config.device, config.fleet, config.keys(), hello)
    folder = Path(config.state_dir)
    agent = open_agent(identity, folder, np.random.default_rng(), int(time.time()))
    programs = OpenBundles("client:fit", 1, UserCode(home.parent), folder)
    return pooled_runtime(agent, config.broker_settings(), examples, programs, pool, loop.wake)


def main() -> None:
    logging.basicConfig(format="%(name)s %(message)s", level=logging.INFO)
    homes = sorted(path.parent for path in Path(sys.argv[1]).glob("*/edge.toml"))
    with closing(Loop()) as loop, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        loop.stop_on_signals()
        runtimes = [bring_up(home, pool, loop) for home in homes]
        for runtime in runtimes:
            stack.callback(runtime.close)
        loop.run(runtimes, lambda: False)


if __name__ == "__main__":
    main()
