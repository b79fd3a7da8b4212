"""The agent of a Sedge device. Importing it loads no machine learning library."""

from sedge_edge.agent import Agent, Identity, Work
from sedge_edge.prediction import PersonalModel, personal_model, predict_file
from sedge_edge.runtime import Programs, open_agent, workplace
from sedge_edge.training.examples import Examples, split
from sedge_edge.training.job import perform
from sedge_edge.training.trainer import Trainer

__all__ = [
    "VERSION",
    "Agent",
    "Examples",
    "Identity",
    "PersonalModel",
    "Programs",
    "Trainer",
    "Work",
    "open_agent",
    "perform",
    "personal_model",
    "predict_file",
    "split",
    "workplace",
]

VERSION = "0.1.0"
