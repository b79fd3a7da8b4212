"""The coordinator of a Sedge fleet. Your own strategies and scripts need only these names."""

from sedge_cloud.admin.runs import start_run
from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.config import RunConfig
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol import Layout, SparseVector, Theta, Training
from sedge_protocol.errors import ConfigError, StrategyError
from sedge_protocol.wire.work import (
    Blend,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    UpdateSelection,
    Work,
)

__all__ = [
    "Assignment",
    "Blend",
    "ClientModel",
    "ConfigError",
    "Context",
    "DeviceScoring",
    "FedAvg",
    "Layout",
    "OwnModel",
    "PatchChoice",
    "RunConfig",
    "SparseVector",
    "State",
    "Store",
    "Strategy",
    "StrategyError",
    "Theta",
    "Training",
    "Update",
    "UpdateSelection",
    "Work",
    "average_change",
    "open_folder",
    "start_run",
]
