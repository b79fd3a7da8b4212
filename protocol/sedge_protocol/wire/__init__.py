"""The wire format: frames, messages, transfers, updates, bundles."""
