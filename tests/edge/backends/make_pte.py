"""Writes softmax.pte: the programs of ``softmax`` for ExecuTorch, from functions written out by hand.

    python -m tests.edge.backends.make_pte

Needs executorch and torch, which the tests of the runtime then do not. Inputs and outputs are part of the
memory plan of two programs and not of that of the third, because the runtime treats them differently.
"""

from pathlib import Path

import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.pass_manager import PassType
from executorch.exir.passes import MemoryPlanningPass
from tests.edge.backends.softmax import B, C, F, N
from torch import Tensor, nn

FILE = Path(__file__).with_name("softmax.pte")
CUT = F * C


def logits_of(theta: Tensor, x: Tensor) -> Tensor:
    return x @ theta[:CUT].reshape(F, C) + theta[CUT:]


def sums(theta: Tensor, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Probabilities and wanted ones (B, C), the sum of weighted losses, and that of the weights."""
    probabilities = torch.softmax(logits_of(theta, x), 1)
    wanted = (y.reshape(B, 1) == torch.arange(C)).to(torch.float32)
    losses = -(torch.log(probabilities) * wanted).sum(1)
    return probabilities, wanted, (losses * w).sum(), w.sum()


class Gradient(nn.Module):
    def forward(self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, wanted, loss_sum, weight_sum = sums(theta, x, y, w)
        mean = (probabilities - wanted) * w.reshape(B, 1) / weight_sum
        return torch.cat([(x.t() @ mean).reshape(-1), mean.sum(0)]), loss_sum / weight_sum


class Evaluate(nn.Module):
    def forward(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, _, loss_sum, weight_sum = sums(theta, x, y, w)
        right = (logits_of(theta, x).argmax(1) == y).to(torch.float32)
        return loss_sum, (right * w).sum(), weight_sum


class Predict(nn.Module):
    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor]:
        return (logits_of(theta, x),)


def main() -> None:
    rows = (torch.zeros(N), torch.zeros(B, F))
    labelled = (torch.zeros(B, dtype=torch.int64), torch.ones(B))
    programs: dict[str, tuple[nn.Module, tuple[Tensor, ...], bool]] = {
        "gradient": (Gradient(), (*rows, *labelled), True),
        "evaluate": (Evaluate(), (*rows, *labelled), False),
        "predict": (Predict(), rows, True),
    }
    exported = {
        name: torch.export.export(module.eval(), arguments, strict=True)
        for name, (module, arguments, _) in programs.items()
    }
    planning: dict[str, PassType] = {
        name: MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
        for name, (_, _, planned) in programs.items()
    }
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    made = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    FILE.write_bytes(made.buffer)


if __name__ == "__main__":
    main()
