"""Collects a job's inputs: the state kept from the run, and a checkpoint if there is one."""

import logging

import msgspec

from sedge_edge.jobs.job import Job
from sedge_edge.jobs.storage import Blobs, Vectors
from sedge_edge.rounds.state import AgentState
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import Order


def job_for(
    order: Order, state: AgentState, blobs: Blobs, vectors: Vectors, http_bytes: int = 0
) -> tuple[Job, list[Note]]:
    """Return the order's job, and a note for everything that the disk has lost.

    If a vector is lost, the job continues without it. If a checkpoint is lost, training starts over.
    """
    notes: list[Note] = []

    def lost(text: str) -> None:
        notes.append(Note(logging.ERROR, f"run {order.run}: {text}"))

    kept = state.kept_for(order)
    for what, name in msgspec.structs.asdict(kept).items():
        # Reading a vector whose hash is wrong removes the vector, so it may be missing here.
        if name is not None and not vectors.has(name):
            kept = msgspec.structs.replace(kept, **{what: None})
            lost(f"the device's own {what} is damaged; continuing without it")
    stopped, checkpoint = state.stopped.get(order.run), None
    if stopped is not None and stopped.round == order.round:
        try:
            checkpoint = blobs.read(stopped.checkpoint)
        except StorageError as exc:
            lost(f"{exc}; training starts over")
    return Job(order, kept, checkpoint, http_bytes), notes
