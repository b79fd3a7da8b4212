"""Runs many agents in one process, each with its own folder, link and data.

    python -m tools.bench.three_hosts.agents FOLDER

FOLDER has a folder for each device, as ``sedge-cloud device add`` writes it, and ``client.py`` with the
training functions. The agents write log lines with time, device and text to standard error.
"""

import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import ParamSpec, TypeVar

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

BACKEND = "client:fit"
# Each job sleeps for a number of seconds in this range, which takes no CPU time.
JOB_S = (0.2, 1.2)
P = ParamSpec("P")
T = TypeVar("T")


class Slow(ThreadPoolExecutor):
    """An executor that delays every job, as if on a slower device."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a job that sleeps before it starts."""
        wait_s = np.random.default_rng().uniform(*JOB_S)

        def later() -> T:
            time.sleep(wait_s)
            return fn(*args, **kwargs)

        return super().submit(later)


def bring_up(home: Path, pool: Slow, wake: Callable[[], None]) -> Runtime:
    """Start the agent of one device, as ``sedge-edge run`` does."""
    config = load_config(home / "edge.toml")
    examples = LiveData(config.data, home)
    train, test = examples()
    hello = Hello(
        bytes(16), "three-hosts", ("function",), tuple(Compression), CODECS, len(train.targets),
        len(test.targets),
    )  # fmt: skip
    identity = Identity(config.device, config.fleet, config.keys(), hello)
    folder = Path(config.state_dir)
    agent = open_agent(identity, folder, np.random.default_rng(), int(time.time()))
    programs = OpenBundles(BACKEND, 1, UserCode(home.parent), folder)
    return pooled_runtime(agent, config.broker_settings(), examples, programs, pool, wake)


def main() -> None:
    """Run all agents until SIGTERM."""
    logging.basicConfig(format="%(created).3f %(name)s %(message)s", level=logging.INFO)
    homes = sorted(path.parent for path in Path(sys.argv[1]).glob("*/edge.toml"))
    with closing(Loop()) as loop, Slow(len(homes)) as pool, ExitStack() as stack:
        loop.stop_on_signals()
        runtimes = [bring_up(home, pool, loop.wake) for home in homes]
        for runtime in runtimes:
            stack.callback(runtime.close)
        loop.run(runtimes, lambda: False)


if __name__ == "__main__":
    main()
