"""Renews a process's lease in a thread, because a step of the loop may last longer than a lease.

Planning or closing a round of many devices is one step. Without this thread, a leader would be replaced in
the middle of the step and its commit refused, and the same would happen to the next leader. If the loop
hangs, the lease is not renewed, so it expires as if the process had been killed.
"""

import logging
import threading
import time
from contextlib import suppress

from sedge_cloud.processes.membership import Membership
from sedge_cloud.store.leases import RENEW_S, Leases
from sedge_protocol.errors import StorageError

# A loop whose step takes longer than this is assumed to be stuck.
LONGEST_STEP_S = 900.0


class Heartbeat:
    """Renews the lease until ``close``. ``store`` has its own connection, for use by any thread."""

    def __init__(self, store: Leases, members: Membership) -> None:
        self._store, self._members = store, members
        store.limit_idle()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. From then on, the loop itself renews any lease that this process still holds."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(RENEW_S):
            if time.monotonic() > self._members.polled_at + LONGEST_STEP_S:
                logging.getLogger("sedge.cloud").error(
                    "the main loop is stuck; not renewing the lease"
                )
                return
            with suppress(StorageError):  # the loop will report the error
                self._store.vouch(self._members.token)
