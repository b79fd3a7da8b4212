"""The agent of a Sedge device. Importing it loads no machine learning library."""

from sedge_edge.agent import Agent
from sedge_edge.prediction import PersonalModel, personal_model, predict_file
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trainer

__all__ = [
    "VERSION",
    "Agent",
    "Examples",
    "PersonalModel",
    "Trainer",
    "personal_model",
    "predict_file",
]

VERSION = "0.1.0"
