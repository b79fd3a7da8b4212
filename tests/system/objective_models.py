"""Models that do not classify, or not plainly: modules of the backend ``torch`` in test_objectives.py."""

import torch
from torch import Tensor, nn

FEATURES, OUTPUTS = 6, 3


def built(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def model() -> nn.Module:
    """Of three outputs."""
    return built(OUTPUTS)


def autoencoder() -> nn.Module:
    """Of as many outputs as inputs."""
    return built(FEATURES)


def pixels() -> nn.Module:
    """A class for each of 2 by 2 pixels, (B, 3, 2, 2)."""
    return nn.Sequential(built(OUTPUTS * 4), nn.Unflatten(1, (OUTPUTS, 2, 2)))


def tokens() -> nn.Module:
    """A class for each of 4 tokens, (B, 4, 3), the classes last."""
    return nn.Sequential(built(OUTPUTS * 4), nn.Unflatten(1, (4, OUTPUTS)))


def own(output: Tensor, y: Tensor) -> Tensor:
    """A loss of the user's: the fourth power."""
    return ((output - y) ** 4).mean(1)


def judged(output: Tensor, y: Tensor) -> Tensor:
    """A metric of the user's: the largest error."""
    return (output - y).abs().amax(1)


def with_both() -> tuple[nn.Module, object, object]:
    return model(), own, judged


class Variational(nn.Module):
    """A variational autoencoder without its noise: what it makes of a row, mean and log variance."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(FEATURES, 4), nn.Linear(2, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """Three outputs as one, (B, 10)."""
        mean, log_variance = self.inner(x).chunk(2, dim=1)
        return torch.cat([self.outer(mean), mean, log_variance], dim=1)


def bound(output: Tensor, x: Tensor) -> Tensor:
    """The evidence lower bound, negative, of each row."""
    made, mean, log_variance = torch.split(output, [FEATURES, 2, 2], dim=1)
    divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(1) / 2
    loss: Tensor = ((made - x) ** 2).sum(1) + divergence
    return loss


def variational() -> tuple[nn.Module, object]:
    return Variational(), bound
