"""Runs three coordinators on three hosts, with servers and devices, and injects faults.

    python -m tools.bench three_hosts --help

network   simulates hosts as network namespaces, which end with the process that made them
fleet     starts the fleet's servers and processes, each on a host
agents    runs many agents in one process
watch     polls the database for when each update was accepted
checks    checks that nothing is lost or counted twice, and that bytes equal those of an undisturbed process
faults    injects the faults
scene     brings the fleet to the moment of a fault
"""
