"""Emulates a fleet of virtual devices on one host. ``read_json`` loads an emulation's result."""

from sedge_emulate.result import Result, read_json

__all__ = ["Result", "read_json"]
