"""The agent of a Sedge device. Importing it loads no machine learning library."""

from sedge_edge.agent import Agent, Identity, StartJob
from sedge_edge.prediction import PersonalModel, personal_model, predict_file
from sedge_edge.runtime import OpenBundles, local_context, open_agent
from sedge_edge.serving import Model
from sedge_edge.training.examples import Examples, split
from sedge_edge.training.job import run_job
from sedge_edge.training.trainer import Trainer
from sedge_protocol import VERSION

__all__ = [
    "VERSION",
    "Agent",
    "Examples",
    "Identity",
    "Model",
    "OpenBundles",
    "PersonalModel",
    "StartJob",
    "Trainer",
    "local_context",
    "open_agent",
    "personal_model",
    "predict_file",
    "run_job",
    "split",
]
