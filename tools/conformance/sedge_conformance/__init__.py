"""``sedge-conformance``: a scripted coordinator that reports the rules of WIRE.md that a client breaks.

acts     what is played, act by act, each with its rules
run      an act's run: its orders, and the updates that come
stage    the core: frames in, effects out; what the client is waiting for, and what it was given
shell    the link and the clock, and a gate between client and broker that can be cut
"""
