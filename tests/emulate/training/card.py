"""A GPU where there is none: fake tensors, which have a device and a shape but no numbers.

torch refuses an operator on tensors of different devices, also where they are fakes. ``card`` counts what
crosses between host and card, and refuses a generator of another device; a number that the host reads is 1.

Where torch is built with CUDA, the card is "cuda". A CPU-only torch has no autograd for fakes of that
(the engine wants streams of its one accelerator), so there another kind of device stands for it. Autograd
asks once which devices there are: this is imported by a process of its own, before autograd runs.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sedge_emulate.training import module
from sedge_export.subject import network


class _Stand(backend_registration._DummyBackendModule):
    """What torch asks of a kind of device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def _found() -> torch.device:
    if torch.version.cuda is not None:
        return torch.device("cuda", 0)
    setup: Any = backend_registration._setup_privateuseone_for_python_backend
    setup("elsewhere", backend_module=_Stand())
    return torch.device("elsewhere", 0)


CARD = _found()


class Fakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes every new tensor a fake, and never looks for a real card."""

    @property
    def avoid_device_init(self) -> bool:
        """Always; torch's own looks."""
        return True


class Host(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what crosses, by operator: ``downloads`` make the host wait for the card."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.downloads: list[str] = []
        self.uploads: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            self.downloads.append("item")
            return 1
        outputs = func(*args, **given)
        before = {t.device.type for t in _tensors((args, given)) if t.numel()}
        after = {t.device.type for t in _tensors(outputs) if t.numel()}
        crosses = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        if crosses and before | after == {"cpu", CARD.type}:
            (self.downloads if after == {"cpu"} else self.uploads).append(str(func))
        drawn = given.get("generator")
        if drawn is not None and {drawn.device.type} != after:
            raise RuntimeError(f"{func}: a generator on {drawn.device} for a tensor on {after}")
        return outputs


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that live on the card; ``peak`` is the most at any moment."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._held = {k: held for k, held in self._held.items() if not held[0].expired()}
        for tensor in _tensors(outputs):
            if tensor.device.type == CARD.type:
                storage = tensor.untyped_storage()
                held = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._held[held.cdata] = held, storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._held.values()))
        return outputs


def _tensors(tree: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _numpy(fake: Tensor) -> NDArray[Any]:
    if fake.device.type != "cpu":
        raise TypeError(f"can't convert {fake.device} device type tensor to numpy")
    value = 1 if fake.is_floating_point() else 0  # a sum may be divided by
    # One number, seen in every place: 512 models are gigabytes otherwise.
    one = np.array(value, str(fake.dtype).removeprefix("torch."))
    return as_strided(one, tuple(fake.shape), (0,) * fake.ndim)


def _tolist(fake: Tensor) -> object:
    return _numpy(fake.cpu()).tolist()


def _name(device: torch.device) -> str:
    return "a card of fakes"


def _copied(model: nn.Module) -> nn.Module:
    """A model is copied with its numbers, before it goes to the card."""
    with unset_fake_temporarily():
        return _COPIED(model)


_COPIED: Callable[[nn.Module], nn.Module] = network.copied


@contextmanager
def card() -> Generator[Host]:
    """In this context there is a card, and no tensor has any numbers."""
    with ExitStack() as stack:
        for owner in (network, module):
            stack.enter_context(patch.object(owner, "copied", _copied))
        for name, replacement in (("numpy", _numpy), ("tolist", _tolist)):
            stack.enter_context(patch.object(FakeTensor, name, replacement))
        stack.enter_context(patch.object(torch.cuda, "get_device_name", _name))
        stack.enter_context(Fakes(allow_non_fake_inputs=True))
        yield stack.enter_context(Host())
