"""``sedge-conformance``: a scripted coordinator that reports which rules of WIRE.md a client breaks.

acts     the test cases; each is played against the client and checks some rules
run      the run of one act: it makes orders and receives updates
stage    the state machine: takes frames, returns effects, serves blobs and records findings
shell    the link and the clock, and a proxy between client and broker that can disconnect them
"""
