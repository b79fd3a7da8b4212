"""Handles an order from its arrival to its receipt: downloads, durable state and uploads."""
