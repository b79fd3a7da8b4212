"""Runs in onnxruntime the same programs that devices run, for one device after another."""

from collections.abc import Sequence

from sedge_edge.backends import open_trainer
from sedge_edge.training.batches import permutations
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Precision, Task, Unsupported, each
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle
from sedge_protocol.wire.update import Metrics


class OnnxFleet:
    """A ``FleetTrainer`` that uses the trainer of real devices.

    Raises ``Unsupported`` if the bundle's programs do not fit the problem.
    """

    name = "onnx"
    width = 1

    def __init__(
        self, problem: TrainingProblem, precision: Precision, bundle: Bundle | None
    ) -> None:
        if bundle is None:
            raise Unsupported("there is no bundle")
        if precision != "fp32":
            raise Unsupported("programs compute only in fp32")
        if problem.shuffles is not permutations:
            raise Unsupported("programs can only shuffle as devices do")
        manifest = bundle.manifest
        frozen = None if manifest.frozen is None else manifest.frozen.layout
        if (manifest.layout, frozen) != (problem.network.layout, problem.network.frozen):
            raise Unsupported("the bundle belongs to another model")
        if manifest.batch_size != problem.batch_size:
            found = f"batch size {manifest.batch_size}, expected {problem.batch_size}"
            raise Unsupported(f"the bundle has {found}")
        self._trainer = open_trainer(bundle, ONNXRUNTIME, threads=1)

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        """Train each task, in order.

        Returns the results; a task that diverged has ``TrainingDiverged`` as its result.
        """
        return each(lambda task: self._trainer.train(*task, lambda: False), tasks)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        """Compute the mean loss and metric of each model theta (n,) on its examples, in order."""
        return each(lambda model: self._trainer.evaluate(*model), models)
