"""The state of a fleet as facts, shared by commands, status page, JSON, metrics and notices."""
