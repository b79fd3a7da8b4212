"""autograd.Functions of a user's own, made fit for torch.func, in which a trace takes its gradients.

torch.func wants a ``forward`` without the context, and a ``setup_context``. Most functions still have one
``forward(ctx, ...)``. Here its context is a stand-in that remembers what is saved on it; the saved tensors
become further outputs of the function, as torch.func demands, and ``backward`` gets them back. Inside of
``functionalize``, where torch has no rule for functions, their forward pass is an ordinary one.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._C._functorch import TransformType
from torch._functorch.autograd_function import custom_function_call
from torch.autograd import Function

from sedge_edge.backends.replaced import replaced

_apply = Function.apply


class _Context:
    """What a ``forward`` keeps for its ``backward``."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, or None."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_tensors: Tensor) -> None:
        """Integers need no gradient, and others get one that is not used."""

    def set_materialize_grads(self, _value: bool) -> None:
        """Gradients that are not there are zeros."""


@contextmanager
def fit_for_tracing() -> Generator[None]:
    """Let functions be applied under torch.func and ``functionalize``."""

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if cls.setup_context is not Function.setup_context:
            return _apply.__func__(cls, *args, **kwargs)  # type: ignore[attr-defined]
        return _applied(cls, args)

    rules = {**custom_function_call.functorch_table, TransformType.Functionalize: _forward}
    with (
        replaced(Function, "apply", classmethod(apply)),
        replaced(custom_function_call, "functorch_table", rules),
    ):
        yield


def _forward(_transform: object, function: type[Function], *args: Any, **kwargs: Any) -> Any:
    return function.forward(*args, **kwargs)


def _applied(old: type[Function], args: tuple[Any, ...]) -> Any:
    context = _Context()
    single = False

    class Fit(Function):
        """The same function, in the form that torch.func takes."""

        @staticmethod
        def forward(*inputs: Any) -> Any:
            nonlocal single
            result = old.forward(context, *inputs)
            single = not isinstance(result, tuple)
            results = (result,) if single else result
            # Copies, as torch.func lets no input be saved that is an output too; programs have no copies.
            copies = (e.clone() if isinstance(e, Tensor) else e for e in context.saved_tensors)
            return *results, *copies

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            saved = output[len(output) - len(context.saved_tensors) :]
            ctx.count = len(output) - len(saved)
            ctx.save_for_backward(*saved)
            ctx.mark_non_differentiable(*(each for each in saved if each is not None))

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            context.saved_tensors = ctx.saved_tensors
            context.needs_input_grad = ctx.needs_input_grad
            return old.backward(context, *gradients[: ctx.count])

    results = _apply.__func__(Fit, *args)  # type: ignore[attr-defined]
    kept = results[: len(results) - len(context.saved_tensors)]
    return kept[0] if single else kept
