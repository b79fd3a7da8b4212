"""The state of a stopped job, so that the next attempt can continue instead of starting over.

Local training (local_training.py) depends only on its job and the answers to its requests. So a checkpoint
contains the answers so far and, if training was stopped, its state. The next attempt repeats the answers
and resumes the training. The result is bit-identical to that of an uninterrupted job.

A checkpoint belongs to one job on one data set. If the order, the start vector or the examples have
changed, it is useless, and training starts over.
"""

import hashlib
from collections.abc import Callable

import msgspec
import numpy as np

from sedge_edge.jobs.job import Kept
from sedge_edge.training.examples import Examples
from sedge_edge.training.local_training import Answer, Evaluate, Request
from sedge_edge.training.state_coding import decode_state, encode_state
from sedge_edge.training.trainer import Trained, TrainingState
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.update import Metrics

# Increment this with every change to the format, to the meaning of a state's vectors, or to how examples
# are shuffled.
_FORMAT = b"checkpoint 4"
# The keys of an order that only say how its blobs can be obtained.
_TRANSFER = frozenset(("steps", "frozen", "places"))


class Checkpoint(msgspec.Struct, frozen=True):
    """The encoded ``answers`` so far, the training state after them, and the ``seconds`` spent on both."""

    job: bytes
    seconds: float = 0.0
    answers: tuple[bytes, ...] = ()
    state: TrainingState | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the checkpoint saves no work, so that training starts from the beginning."""
        return not self.answers and self.state is None

    def answer(self, index: int, request: Request) -> Answer:
        """Return the answer to the request with this index."""
        data = self.answers[index]
        return (
            decode_state(data, Metrics)
            if isinstance(request, Evaluate)
            else decode_state(data, Trained)
        )


class Responder:
    """Answers the requests of local training: first from an earlier attempt, then by calling ``ask``.

    ``ask`` takes a request and, if that request's training was stopped, the state to resume it from.
    ``clock`` is in seconds.
    """

    def __init__(
        self,
        earlier: Checkpoint,
        ask: Callable[[Request, TrainingState | None], Answer],
        clock: Callable[[], float],
    ) -> None:
        self._earlier, self._ask, self._clock = earlier, ask, clock
        self._answers: list[Answer] = []
        self._began = clock()

    @property
    def seconds(self) -> float:
        """The seconds spent so far, including earlier attempts."""
        return self._earlier.seconds + self._clock() - self._began

    def answer(self, request: Request) -> Answer:
        """Return the answer to the next request."""
        index, known = len(self._answers), len(self._earlier.answers)
        if index < known:
            answer = self._earlier.answer(index, request)
        else:
            answer = self._ask(request, self._earlier.state if index == known else None)
        self._answers.append(answer)
        return answer

    def checkpoint(self, state: TrainingState | None) -> Checkpoint | None:
        """Return the checkpoint for the next attempt, or None if it would not save any training."""
        if state is None and all(isinstance(answer, Metrics) for answer in self._answers):
            return None
        answers = tuple(encode_state(answer) for answer in self._answers)
        return Checkpoint(self._earlier.job, self.seconds, answers, state)


def job_hash(order: Order, kept: Kept, train: Examples, test: Examples) -> bytes:
    """Return a hash of what a checkpoint depends on: the order, the kept state and the examples.

    It does not cover how the order's blobs are transferred, which a repeated order may change. Of the
    examples it covers the targets and the shape of the inputs.
    """
    wanted = {
        key: value.sha256 if isinstance(value, Manifest) else value
        for key, value in msgspec.structs.asdict(order).items()
        if key not in _TRANSFER
    }
    shapes = train.inputs.shape, test.inputs.shape
    found = hashlib.sha256(_FORMAT + msgspec.msgpack.encode((wanted, kept, shapes)))
    for examples in (train, test):
        found.update(np.ascontiguousarray(examples.targets).data)
    return found.digest()


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the checkpoint encoded as MessagePack."""
    return encode_state(checkpoint)


def decode_checkpoint(data: bytes | None, job: bytes) -> Checkpoint:
    """Decode a checkpoint. Returns an empty one if there is none, or if it belongs to another job."""
    try:
        found = None if data is None else decode_state(data, Checkpoint)
    except ValueError:  # raised by msgspec if another version wrote the data
        found = None
    return Checkpoint(job) if found is None or found.job != job else found
