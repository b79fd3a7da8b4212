"""The coordinator of a Sedge fleet. The names here are what a strategy or a script of your own needs."""

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RunConfig
from sedge_cloud.store.database import Store
from sedge_cloud.strategy import Assignment, Memory, State, Strategy, Update

__all__ = [
    "Assignment",
    "Memory",
    "RunConfig",
    "State",
    "Store",
    "Strategy",
    "Update",
    "start_run",
]
