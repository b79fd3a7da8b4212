"""The types that the exporter's stages pass to each other.

Each stage is a folder with one function, named in brackets below. ``exporter.export`` calls them in
order.

    Subject      (subject.take)      the user's model, taken once; stages run copies of it, never the model
    Inspected    (inspect)           the model to export, and what was found by running it eagerly
    Traced       (trace_programs)    a graph of ATen operators for each program
    Lowered      (lower)             the files for each runtime
    Verification (verify)            how far the programs are from eager torch
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, fx, nn
from torch._ops import OpOverload

from sedge_export.programs import File
from sedge_export.subject.batches import Samples
from sedge_export.subject.network import Network
from sedge_export.subject.objective import Choice
from sedge_protocol.axes import Axes
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import Guide
from sedge_protocol.wire.parts import InputPart
from sedge_protocol.wire.programs import FROZEN, Signature, signatures

# Returns the module and line that an operator came from, as `` (module 'encoder', net.py:31)``.
Where: TypeAlias = Callable[[OpOverload], str]
# The file of each program, by runtime and program.
Lowered: TypeAlias = Mapping[str, Mapping[str, File]]


@dataclass(frozen=True)
class Subject:
    """A model with one input, a batch x (B, ...) to trace it with, and its objective.

    If the user's model has several inputs, ``parts`` describe where each is in a row of x. ``real`` are
    the user's rows, if given.
    """

    model: nn.Module
    network: Network
    x: Tensor
    choice: Choice
    num_classes: int
    parts: tuple[InputPart, ...] = ()
    real: Samples | None = None


@dataclass(frozen=True)
class Inspected:
    """The subject at the width to export. ``outputs`` is the shape of its output for one row.

    ``noise`` is the number of random numbers that a batch uses in training. ``vocabulary`` is an
    exclusive upper bound on integers in x, or 0. ``target`` describes a row of y, None if the input is
    the target. ``sources`` are rows for verification, random ones first. ``axes`` says how the model
    can be narrowed, if it can, and ``dropped`` is the share of channels that is left out.
    """

    subject: Subject
    where: Where
    outputs: tuple[int, ...]
    noise: int
    vocabulary: int
    axes: Axes | None
    dropped: float
    target: TensorSpec | None
    sources: tuple[Samples, ...]

    @property
    def signatures(self) -> dict[str, Signature]:
        """The names of each program's inputs and outputs."""
        network = self.subject.network
        held = self.noise > 0, network.frozen is not None
        return signatures(bool(network.layout.statistics), *held, self.guide)

    @property
    def guide(self) -> Guide | None:
        """The guide of the guided loss, if there is one."""
        guided = self.subject.choice.rows.guided
        return None if guided is None else guided.guide

    @property
    def constant(self) -> dict[str, Theta]:
        """The inputs, by name, that stay the same in every call of a program."""
        values = self.subject.network.frozen_values
        return {} if values is None else {FROZEN: values}


@dataclass(frozen=True)
class Traced:
    """The graph of each program, and its number of multiply-adds per run, by program name."""

    graphs: Mapping[str, fx.GraphModule]
    signatures: Mapping[str, Signature]
    multiply_adds: Mapping[str, int]
    where: Where
