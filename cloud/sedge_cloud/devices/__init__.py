"""Which devices there are, and the bytes that they send and receive."""
