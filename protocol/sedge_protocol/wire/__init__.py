"""What goes over the wire: frames, messages, transfers, updates, bundles."""
