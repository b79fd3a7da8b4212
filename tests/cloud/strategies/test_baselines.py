"""FedAvg with another plan: what each method asks of a device, and the mean of what comes back."""

import msgspec
import numpy as np
import pytest
from tests.cloud.contexts import context_of
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.apfl import APFL, LARGEST
from sedge_cloud.strategies.ditto import Ditto
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedbn import FedBN
from sedge_cloud.strategies.fedper import FedPer, LGFedAvg
from sedge_cloud.strategies.fedprox import FedProx
from sedge_cloud.strategies.fedrep import FedBABU, FedRep
from sedge_cloud.strategies.local_only import LocalOnly
from sedge_cloud.strategy import Assignment, ClientModel, Strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import OwnModel, Work

ZEROS = np.zeros(LAYOUT.size, np.float32)
RUN = Training(local_epochs=5, learning_rate=0.2, prox=9.0, freeze=("conv.bias",))
HEAD = ("head.weight", "head.bias")
BODY = ("conv.weight", "conv.bias", "norm.weight", "norm.bias")


def phase(epochs: int, *freeze: str) -> Training:
    return Training(local_epochs=epochs, learning_rate=0.2, prox=9.0, freeze=("conv.bias", *freeze))


def own(mix: float, adaptive: bool) -> Work:
    return Work(own_model=OwnModel(RUN, mix, adaptive))


def pulled(prox: float, epochs: int = 5) -> Training:
    return msgspec.structs.replace(RUN, prox=prox, local_epochs=epochs)


@pytest.mark.parametrize(
    ("strategy", "client", "work"),
    [
        (FedAvg(), ClientModel(), Work()),
        (FedAvg(), ClientModel(trained=ZEROS, round=3), Work()),
        (LocalOnly(), ClientModel(), Work(keep=tuple(LAYOUT.by_name), upload=False)),
        (FedBN(), ClientModel(), Work(keep=("norm.weight", "norm.bias", "norm.running_mean"))),
        (FedBN("all"), ClientModel(), Work(keep=("norm.weight", "norm.bias"))),
        (FedPer(), ClientModel(), Work(keep=HEAD)),
        (FedPer(head=("head.bias",)), ClientModel(), Work(keep=("head.bias",))),
        (LGFedAvg(), ClientModel(), Work(keep=BODY)),
        (LGFedAvg(head=("conv",)), ClientModel(), Work(keep=("norm.weight", "norm.bias", *HEAD))),
        (FedProx(mu=0.25), ClientModel(), Work(training=pulled(0.25))),
        (Ditto(lam=0.5), ClientModel(), Work(own_model=OwnModel(pulled(0.5)))),
        (Ditto(personal_epochs=7), ClientModel(), Work(own_model=OwnModel(pulled(0.1, 7)))),
        (FedRep(), ClientModel(), Work(keep=HEAD, training=phase(4, *BODY), then=(phase(1, *HEAD),))),
        (
            FedRep(body_epochs=9),
            ClientModel(),
            Work(keep=HEAD, training=phase(1, *BODY), then=(phase(9, *HEAD),)),
        ),
        (FedBABU(head_epochs=2), ClientModel(), Work(training=phase(3, *HEAD), then=(phase(2, *BODY),))),
        # alpha comes back as the device reported it; 1 would be Ditto's
        (APFL(alpha=0.25), ClientModel(), own(0.25, True)),
        (APFL(alpha=0.25), ClientModel(mix=0.75), own(0.75, True)),
        (APFL(alpha=0.25), ClientModel(mix=0.0), own(0.0, True)),
        (APFL(alpha=0.25), ClientModel(mix=1.0), own(LARGEST, True)),
        (APFL(alpha=0.25, adaptive=False), ClientModel(mix=0.75), own(0.25, False)),
    ],
)  # fmt: skip
def test_what_a_device_is_asked(strategy: Strategy, client: ClientModel, work: Work) -> None:
    context = context_of(LAYOUT, ZEROS, training=RUN)
    assert strategy.init(context).theta is ZEROS
    assert strategy.plan(context, client) == Assignment(work=work)


@pytest.mark.parametrize("kind", [FedPer, LGFedAvg, FedRep, FedBABU])
def test_an_unknown_part_is_refused_when_the_run_starts(kind: type[FedPer]) -> None:
    with pytest.raises(ConfigError, match="head: found 'fc'"):
        kind(head=("fc",)).init(context_of(LAYOUT, ZEROS))
