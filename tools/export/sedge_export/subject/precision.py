"""Rounds frozen tensors to fewer bits than float32, and measures what that costs in accuracy.

Rounding happens before programs are traced and verified, so the rounded model is the one that is
exported. Every device gets exactly these values: transferring them loses nothing more.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sedge_export.stages import Subject
from sedge_export.subject.batches import Samples
from sedge_export.subject.network import Network, copied
from sedge_protocol.codec.grid import on_own_grid
from sedge_protocol.codec.values import ValueCoding, decoded_values
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.objective import Metric

# Values become multiples of 1/LEVELS of a tensor's root mean square. All but outliers take one byte, or
# about six bits once compressed. In examples/pretrained.py, All-MiniLM-L6-v2 takes 17.4 MB with 1/16,
# 14.7 MB with 1/8 and 14.1 MB with 1/6, and loses 0.2, 0.2 and 0.5 percentage points of accuracy. This
# model would not need 1/16, but one constant has to serve all models. For comparison, int8 in blocks of
# 64 values with a scale for each block takes 21.9 MB and loses 0.2 points.
LEVELS = 16
# The largest loss of quality that rounding the frozen tensors may cause: a difference in the metric or,
# if the metric is not a share, that difference relative to its value.
LARGEST_LOSS = 0.005
# With fewer held-out rows, a single wrong row would exceed that loss.
MIN_HELD_OUT = 200
MAX_HELD_OUT = 1000
# The model is trained before the measurement, long enough for a head and adapters to depend on the
# frozen tensors.
TRAINING_ROWS, EPOCHS, LEARNING_RATE = 512, 4, 2e-3


def _bf16(values: Theta) -> Theta:
    return decoded_values(values, ValueCoding.BF16)


def _int8(values: Theta) -> Theta:
    return _bf16(on_own_grid(values, LEVELS))


# How tensors of two or more dimensions are rounded. Others, such as biases, are small and become bf16.
ROUNDED: dict[str, Callable[[Theta], Theta]] = {"bf16": _bf16, "int8": _int8}


@dataclass(frozen=True)
class RoundingCost:
    """The metric of a trained model on held-out ``rows``, with its frozen tensors exact and rounded."""

    precision: str
    metric: Metric
    exact: float
    rounded: float
    rows: int

    @property
    def loss(self) -> float:
        """How much worse the metric gets, absolutely or, if the metric is not a share, relatively."""
        lost = self.exact - self.rounded
        lost = lost if self.metric.better == "higher" else -lost
        return lost if self.metric.share else lost / max(abs(self.exact), 1e-12)

    def __str__(self) -> str:
        figures = f"{self.rounded:.4f}, {self.exact:.4f} with the base in float32"
        return f"{self.precision}: {self.metric.name} {figures}, on {self.rows} held-out rows"


def in_precision(subject: Subject, precision: str, seed: int) -> tuple[Subject, str]:
    """Round the subject's frozen tensors. Returns the subject, and its cost as text ("" without real rows).

    Raises ``ExportError`` if the model has no frozen tensors, if there are too few rows, or if the loss
    of quality exceeds ``LARGEST_LOSS``.
    """
    rounded = round_frozen(subject, precision)
    if subject.real is None:
        return rounded, ""
    cost = measured_cost(subject, rounded, precision, seed)
    if not cost.loss <= LARGEST_LOSS:  # also refuses NaN
        lost = f"it loses more than {LARGEST_LOSS:g}, expected another precision"
        raise ExportError(f"frozen in {cost}: {lost}")
    return rounded, str(cost)


def round_frozen(subject: Subject, precision: str) -> Subject:
    """Round the subject's frozen tensors. Raises ``ExportError`` if it has none."""
    if subject.network.frozen is None:
        expected = "parameters with requires_grad=False to round"
        raise ExportError(f"frozen in {precision}: every parameter is trained, expected {expected}")
    model = copied(subject.model)
    for name in subject.network.frozen.by_name:
        _round(_tensors(model)[name], precision)
    return replace(subject, model=model, network=Network(model, subject.choice.rows))


def _round(tensor: Tensor, precision: str) -> None:
    values = tensor.detach().numpy().ravel()
    found = (ROUNDED[precision] if tensor.ndim > 1 else _bf16)(values)
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(found.reshape(tensor.shape)))


def measured_cost(exact: Subject, rounded: Subject, precision: str, seed: int) -> RoundingCost:
    """Train with exact frozen tensors. Then evaluate on other real rows with exact and with rounded ones.

    Raises ``ExportError`` if there are too few rows.
    """
    assert exact.real is not None
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(exact.real.x), generator=rng)
    count = min(TRAINING_ROWS, len(order) // 2)
    held_out = order[count:][:MAX_HELD_OUT]
    if len(order) < 2 * MIN_HELD_OUT:
        found, expected = (
            f"{len(order)} rows",
            f"at least {2 * MIN_HELD_OUT}, half of them to measure on",
        )
        raise ExportError(f"frozen in {precision}: {found}, expected {expected}")
    batches = [order[:count][torch.randperm(count, generator=rng)] for _ in range(EPOCHS)]
    theta = _trained(
        exact, [rows for epoch in batches for rows in torch.split(epoch, len(exact.x))]
    )
    metrics = [_metric(subject, theta, exact.real, held_out) for subject in (exact, rounded)]
    return RoundingCost(precision, exact.choice.metric, metrics[0], metrics[1], len(held_out))


def _trained(subject: Subject, batches: list[Tensor]) -> Tensor:
    """Train with Adam, one step per batch of indices of real rows. Returns theta (n,)."""
    network, real = subject.network, subject.real
    assert real is not None
    theta = torch.from_numpy(network.theta.copy())
    optimizer = torch.optim.Adam([theta], LEARNING_RATE)
    statistics = [t.slice for t in network.layout.tensors if t.name in network.layout.statistics]
    network.model.train()
    for rows in batches:
        with network.unchanged():
            gradient, _, *moved = network.gradient(
                theta, real.x[rows], real.y[rows], torch.ones(len(rows))
            )
        theta.grad = gradient.detach()
        optimizer.step()
        for place, values in zip(statistics, _parts(moved, statistics), strict=True):
            theta[place] = values.detach()
    return theta


def _parts(moved: list[Tensor], places: list[slice]) -> tuple[Tensor, ...]:
    sizes = [place.stop - place.start for place in places]
    return moved[0].split_with_sizes(sizes) if moved else ()


def _metric(subject: Subject, theta: Tensor, real: Samples, rows: Tensor) -> float:
    network: Network = subject.network
    network.model.eval()
    sums = torch.zeros(3)
    with torch.no_grad(), network.unchanged():
        for part in torch.split(rows, len(subject.x)):
            sums += torch.stack(
                network.evaluate(theta, real.x[part], real.y[part], torch.ones(len(part)))
            )
    network.model.train()
    return subject.choice.rows.reported(float(sums[1] / sums[2]))


def require_finite(subject: Subject) -> None:
    """Raise ``ExportError`` for a frozen tensor that holds NaN or inf, which cannot be transferred."""
    frozen, tensors = subject.network.frozen, _tensors(subject.model)
    for name in () if frozen is None else frozen.by_name:
        if not tensors[name].isfinite().all():
            expected = "finite numbers; store a mask of -inf as a buffer"
            raise ExportError(f"{name!r}: frozen with NaN or inf, expected {expected}")


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
