"""The facts about a fleet's state, shared by commands, status page, JSON, metrics and notices."""
