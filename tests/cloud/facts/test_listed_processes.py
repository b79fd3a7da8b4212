"""Which processes serve a fleet, as its rows say."""

from sedge_cloud.facts.processes import SILENT_S, processes_of
from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.rows import CoordinatorRow

NOW = 1000.0


def listed(expires: float, *coordinators: CoordinatorRow) -> int:
    """How many processes are listed when one's lease ends then."""
    process = ProcessRow(7, "host", "boot", 1, 1, expires=expires)
    return len(processes_of([process], [LeaseRow("leader", 7)], coordinators, NOW))


def test_a_process_serves_while_it_has_a_lease_or_gives_signs_of_life() -> None:
    """Who is alone renews no lease."""
    heard = CoordinatorRow(7, running=True, heard=NOW - SILENT_S + 1)
    assert (listed(NOW + 1), listed(NOW - 60, heard)) == (1, 1)
    assert not listed(NOW - 60)
    assert not listed(NOW - 60, CoordinatorRow(8, running=True, heard=NOW))
    assert not listed(NOW - 60, CoordinatorRow(7, running=False, heard=NOW))
    assert not listed(NOW - 60, CoordinatorRow(7, running=True, heard=NOW - SILENT_S - 1))
