"""Fleets of virtual devices on one host; ``read_json`` reads the result of one of them."""

from sedge_emulate.result import Result, read_json

__all__ = ["Result", "read_json"]
