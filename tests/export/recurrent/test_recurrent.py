"""Recurrent layers as loops: torch's values and gradients, in programs of one size for any length."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from tests.export.layers import Lambda
from tests.fleet import always
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sedge_export import export
from sedge_export.recurrent.loop import LOOP
from sedge_export.tracing.trace import trace
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import BundleManifest

torch.set_num_threads(1)

BATCH, INPUTS, UNITS = 3, 4, 2


def layer(make: Callable[..., nn.RNNBase], **settings: object) -> nn.RNNBase:
    torch.manual_seed(0)
    return make(INPUTS, UNITS, **settings).double()


LAYERS = {
    "rnn": layer(nn.RNN),
    "rnn, relu, both ways": layer(nn.RNN, nonlinearity="relu", bidirectional=True, bias=False),
    "gru": layer(nn.GRU),
    "gru, two layers both ways": layer(nn.GRU, num_layers=2, bidirectional=True),
    "gru, no bias": layer(nn.GRU, bias=False),
    "lstm": layer(nn.LSTM, bias=False),
    "lstm, two layers both ways": layer(nn.LSTM, num_layers=2, bidirectional=True),
}


CASES = [
    *((name, 5, True) for name in LAYERS),
    ("rnn", 1, False),
    ("lstm, two layers both ways", 1, False),
]


@pytest.mark.parametrize(("name", "steps", "begun"), CASES)
def test_values_and_gradients_are_torchs(name: str, steps: int, begun: bool) -> None:
    of = LAYERS[name]
    rng = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    ways = of.num_layers * (2 if of.bidirectional else 1)
    first = [random(ways, BATCH, UNITS) for _ in range(2 if isinstance(of, nn.LSTM) else 1)]
    weights, x = dict(of.named_parameters()), random(steps, BATCH, INPUTS)
    by, states_by = random(steps, BATCH, UNITS * ways // of.num_layers), random(ways, BATCH, UNITS)

    def loss(x: Tensor, states: list[Tensor], values: dict[str, Tensor]) -> Tensor:
        """Of the outputs and the last states, each element with another weight."""
        given = (states[0] if len(states) == 1 else tuple(states),) if begun else ()
        output, last = torch.func.functional_call(of, values, (x, *given))
        ends = [last] if isinstance(last, Tensor) else last
        total: Tensor = (output * by).sum() + torch.stack([end * states_by for end in ends]).sum()
        return total

    def gradients(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        states = list(tensors[: len(first)])
        values = dict(zip(weights, tensors[len(first) :], strict=True))
        found = torch.func.grad_and_value(loss, (0, 1, 2))(x, states, values)
        (to_x, to_states, to_weights), value = found
        return value, to_x, *to_states, *to_weights.values()

    inputs = [x, *first, *(weight.detach() for weight in weights.values())]
    graph = trace(gradients, inputs)
    assert len(graph.graph.find_nodes(op="call_function", target=LOOP)) == 2 * ways
    for found, expected in zip(graph(*inputs), gradients(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_projected_states_are_not_a_loop() -> None:
    of = nn.LSTM(INPUTS, UNITS, proj_size=1)

    def outputs(x: Tensor) -> Tensor:
        found: Tensor = of(x)[0]
        return found

    graph = trace(outputs, [torch.randn(2, BATCH, INPUTS)])
    assert not graph.graph.find_nodes(op="call_function", target=LOOP)


class Packed(nn.Module):
    """The last state of a packed GRU, all outputs of a packed LSTM, filled up, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRU(INPUTS, UNITS), nn.LSTM(INPUTS, UNITS, bidirectional=True)
        self.head = nn.Linear(UNITS + 8 * 2 * UNITS, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows, steps = x.shape[:2]
        listed = pack_padded_sequence(x, [steps] * rows, batch_first=True)
        tensor = torch.full((rows,), steps)
        unsorted = pack_padded_sequence(x, tensor, batch_first=True, enforce_sorted=False)
        packed = self.lstm(unsorted)[0]
        outputs, _ = pad_packed_sequence(packed, batch_first=True, total_length=steps + 2)
        found: Tensor = self.head(torch.cat([self.gru(listed)[1][0], outputs.flatten(1)], 1))
        return found


def test_packed_sequences_of_all_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample = torch.randn(BATCH, 6, INPUTS)
    export(Packed(), sample, batch_size=BATCH, name="m", num_classes=3, folder=tmp_path)


def counted(x: Tensor) -> Tensor:
    return (x[..., 0] > 9).sum(1) + 6


@pytest.mark.parametrize(
    ("lengths", "projected", "pattern"),
    [
        (always([5] * BATCH), 0, r"recurrent\.py:\d+: lengths 5 to 5, expected 6 for each row"),
        (counted, 0, r"lengths that depend on the data.*output\.gather"),
        (always([6] * BATCH), 1, "packed .* LSTM with projected states, expected proj_size=0"),
    ],
)
def test_packed_sequences_that_are_refused(
    lengths: Callable[[Tensor], Tensor | list[int]], projected: int, pattern: str
) -> None:
    of = nn.LSTM(INPUTS, UNITS, proj_size=projected)

    def last(x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths(x), batch_first=True)
        return of(packed)[1][0]  # type: ignore[no-any-return]

    with pytest.raises(ExportError, match=pattern):
        trace(last, [torch.randn(BATCH, 6, INPUTS)])


def test_a_sequence_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_export.lowering.onnx.loops.MAX_STEPS", 5)
    with pytest.raises(ExportError, match="6 steps of gru, expected at most 5"):
        exported(6, tmp_path)


def exported(steps: int, folder: Path) -> tuple[BundleManifest, dict[str, list[str]]]:
    """The manifest of a GRU's last step and a classifier, and the operators of each program."""
    torch.manual_seed(0)
    last = Lambda(lambda gru, x: gru(x)[0][:, -1], nn.GRU(INPUTS, 8, batch_first=True))
    model, sample = nn.Sequential(last, nn.Linear(8, 3)), torch.randn(BATCH, steps, INPUTS)
    manifest = export(model, sample, batch_size=BATCH, name="m", num_classes=3, folder=folder)
    graphs = {program.name: onnx.load(folder / program.file).graph for program in manifest.programs}
    return manifest, {name: [n.op_type for n in graph.node] for name, graph in graphs.items()}


def test_a_program_has_one_size_for_any_number_of_steps(tmp_path: Path) -> None:
    few, nodes_of_few = exported(4, tmp_path / "few")
    many, nodes_of_many = exported(20, tmp_path / "many")
    assert nodes_of_few == nodes_of_many
    scans = {name: nodes.count("Scan") for name, nodes in nodes_of_many.items()}
    assert scans == {"gradient": 2, "evaluate": 1, "predict": 1}
    head, each = BATCH * 8 * 3, BATCH * 3 * 8 * (INPUTS + 8)  # of the last layer, of a step
    for manifest, steps in ((few, 4), (many, 20)):
        costs = {program.name: program.multiply_adds for program in manifest.programs}
        assert costs["predict"] == head + steps * each
        # Backwards twice as many, but that of the input of the whole.
        assert costs["gradient"] == 3 * head + steps * (3 * each - BATCH * 3 * 8 * INPUTS)
