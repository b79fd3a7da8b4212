"""The state of a fleet: one set of facts for commands, page, JSON, metrics and notices."""
