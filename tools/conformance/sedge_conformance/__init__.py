"""``sedge-conformance``: a scripted coordinator that reports the rules of WIRE.md that a client breaks.

acts     the test cases; each is played against the client and checks some rules
run      the run that an act uses: it makes orders and receives updates
stage    the state machine: frames in, effects out; it serves blobs and records findings
shell    the link and the clock, and a proxy between client and broker that can disconnect
"""
