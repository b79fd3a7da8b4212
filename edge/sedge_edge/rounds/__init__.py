"""An order from its arrival to its receipt: what is fetched, kept and sent."""
