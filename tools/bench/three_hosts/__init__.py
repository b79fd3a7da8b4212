"""Three coordinators on three hosts, with their servers, devices and faults.

    python -m tools.bench three_hosts --help

network   hosts that are network namespaces, which all end with the process that made them
fleet     the fleet's files, its servers and processes, each on a host
agents    many agents in one process, over the broker
watch     when each update was accepted, as the database shows it
checks    nothing lost, nothing counted twice, and the bytes of one process that nobody disturbed
faults    what goes wrong
scene     a fleet, a fault, and what was seen
"""
