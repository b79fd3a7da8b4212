"""What an operator sees: one set of facts, read by commands, page, JSON, metrics and notices."""
