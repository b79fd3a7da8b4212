"""Who can be told to have ended: a process of this host, in this start of it."""

import os
import subprocess
import sys

import msgspec

from sedge_cloud.processes.identity import has_ended, this_process
from sedge_cloud.store.leases import ProcessRow


def test_a_process_that_ended_on_this_host_is_known_to_have() -> None:
    mine = this_process()
    assert not has_ended(mine, mine)
    code = "from sedge_cloud.processes.identity import *; import msgspec, sys, time;"
    code += "print(msgspec.json.encode(this_process()).decode(), flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        other = msgspec.json.decode(child.stdout.readline(), type=ProcessRow)
        assert not has_ended(other, mine)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(other, mine)  # also before anybody has waited for it
    assert has_ended(other, mine)
    assert not has_ended(msgspec.structs.replace(other, boot="another"), mine)
    assert not has_ended(msgspec.structs.replace(other, host="another"), mine)
    assert has_ended(msgspec.structs.replace(mine, started=mine.started - 1), mine)
