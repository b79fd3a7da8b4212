"""Inspects a model before it is traced: its output, its side effects, and the origins of its operators.

The model runs eagerly once in each mode, while its operators are recorded. Random operators, other
random numbers and changed buffers are refused here, with the module and the source line. If an operator
cannot be lowered later, the record tells which module it came from.
"""

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from sedge_export.inspection.survey import DrawDetector, Sums, run
from sedge_export.subject.network import BATCH_NORMS
from sedge_export.subject.source import bare_name, here, place, reason
from sedge_export.subject.subject import require_known
from sedge_protocol.errors import ExportError

FAILS_ON_SAMPLE = "fails on the sample input"


_AUTOGRAD = Path(torch.autograd.__file__)
_EVALUATION = (
    "it draws random numbers in evaluation mode, where a program has none; draw them only"
    " `if self.training`"
)
_GENERATOR = "a program cannot receive a generator's random numbers: leave out generator="
_RANDOM = (
    "a program cannot receive its random numbers: write it with torch.rand, torch.randn, torch.bernoulli"
    " or dropout, whose numbers it receives in training"
)
_DIFFERENTIATES = (
    "a forward that differentiates is not supported: a program has only the gradient of the loss"
)
ON_A_CARD = "programs are exported on the CPU: write .to(x.device) for .to('cuda')"
_INTEGERS = "integers are for token ids; measurements must be float32"


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records where each operator is first called, by bare name (add_ and add_backward are ``add``)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.noise = 0  # random numbers drawn in the last training run
        self.vocabulary = 0  # upper bound on x if x indexes an embedding, else 0
        self.sums: dict[bool, Sums] = {}  # from the last run in each mode; True is training
        self._x = torch.empty(0)
        self._inside: list[str] = []
        self._origins: dict[str, str] = {}
        self._watch = DrawDetector(model, self._here)

    def where(self, operator: OpOverload) -> str:
        """Return where the operator is called, as `` (module 'enc.attn', net.py:31)``; '' if unknown."""
        return self._origins.get(bare_name(operator), "")

    def run(self, x: Tensor) -> object:
        """Run the model and record its operators. Returns its output for ``x``.

        Raises ``ExportError`` if the model draws random numbers that a program could not be given.
        """
        self._x = x
        hooks = [
            hook
            for name, module in self.model.named_modules()
            for hook in (
                module.register_forward_pre_hook(self._entering(name)),
                module.register_forward_hook(self._left, always_call=True),
            )
        ]
        try:
            with self._watch.watching(), self:
                ran = run(self.model, x)
        finally:
            for hook in hooks:
                hook.remove()
        self.sums[self.model.training] = ran.sums()
        self.noise = max(self.noise, ran.noise)
        if self._watch.drawn:
            raise ExportError(
                f"model: its forward pass draws random numbers from {self._watch.drawn}: a program would"
                f" repeat the same outcome for ever; {_way_out(self.model)}"
            )
        return ran.output

    def _entering(self, name: str) -> Callable[[nn.Module, object], None]:
        def enter(_module: nn.Module, _arguments: object) -> None:
            self._watch.look()
            self._inside.append(name)

        return enter

    def _left(self, _module: nn.Module, _arguments: object, _result: object) -> None:
        self._watch.look()
        self._inside.pop()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the operator, then let it run. Raises ``ExportError`` for a random one."""
        name = bare_name(func)
        if name not in self._origins:
            self._origins[name] = self._here()
        if torch.Tag.nondeterministic_seeded in func.tags:
            own = (kwargs or {}).get("generator") is not None
            why = _GENERATOR if own else _RANDOM if self.model.training else _EVALUATION
            raise ExportError(f"cannot lower {func}{self._origins[name]}: {why}")
        if func is torch.ops.aten.embedding.default and self._is_input(args[1]):
            rows = len(args[0])
            self.vocabulary = min(rows, self.vocabulary) if self.vocabulary else rows
        return func(*args, **(kwargs or {}))

    def _is_input(self, indices: Tensor) -> bool:
        """Return True if ``indices`` is a view of the whole input."""
        storages = indices.untyped_storage(), self._x.untyped_storage()
        return indices.numel() == self._x.numel() and len({s.data_ptr() for s in storages}) == 1

    def _here(self) -> str:
        origin = [f"module {self._inside[-1]!r}"] if self._inside and self._inside[-1] else []
        if line := here():
            origin.append(line)
        return f" ({', '.join(origin)})" if origin else ""


def inspect_model(
    model: nn.Module, x: Tensor, num_classes: int, labels: tuple[int, ...] = (),
    modes: Sequence[bool] = (False, True), label: str = "sample_input",
) -> tuple[OperatorRecorder, tuple[int, ...]]:  # fmt: skip
    """Run the model, by default in both modes. Returns the record, and the shape of an output row.

    ``labels`` is the shape of a row's labels, and ``label`` is what error messages call ``x``.

    Raises ``ExportError`` if the model fails on ``x``, returns anything but float32 (B, C, ...), draws
    random numbers, or changes a tensor that is not a running statistic.
    """
    recorder = OperatorRecorder(model)
    row: tuple[int, ...] = ()
    for training in modes:
        model.train(training)
        before = {name: t.clone() for name, t in _tensors(model).items()}
        try:
            output = recorder.run(x)
        except ExportError:
            raise
        except Exception as exc:  # the user's code may raise anything
            require_known(label, x, recorder.vocabulary)
            raise ExportError(
                f"model: {FAILS_ON_SAMPLE} {x.dtype} {tuple(x.shape)}{place(exc)}: {_why(exc, x)}"
            ) from exc
        row = _check_output(output, x.shape[0], num_classes, labels)
        _check_unchanged(before, _tensors(model))
    return recorder, row


def _why(exc: Exception, x: Tensor) -> str:
    """Return the reason for the model's exception, with a fix if one is known."""
    frames = traceback.extract_tb(exc.__traceback__)
    if any(Path(frame.filename) == _AUTOGRAD for frame in frames):
        return _DIFFERENTIATES
    text = reason(exc)
    if re.search("cuda|nvidia", text, re.IGNORECASE):
        return f"{text}; {ON_A_CARD}"
    typed = not x.is_floating_point() and re.search("dtype|scalar type|Long|Int", text)
    return f"{text}; {_INTEGERS}" if typed else text


def _way_out(model: nn.Module) -> str:
    """Return the fix for a model whose random numbers do not come from torch."""
    configs = (getattr(module, "config", None) for module in model.modules())
    if any(getattr(config, "apply_spec_augment", False) for config in configs):
        return "give the model's config apply_spec_augment=False and layerdrop=0"
    return "draw them in training with torch.rand or dropout, whose numbers a program receives"


def accepts(model: nn.Module, x: Tensor) -> bool:
    """Return True if the model, which has accepted other values of the same shape, accepts these, too."""
    model.eval()
    try:
        with torch.no_grad():
            model(x)
    except Exception:  # the user's code may raise anything
        return False
    return True


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        if not isinstance(module, BATCH_NORMS):
            tensors |= dict(module.named_buffers(prefix, recurse=False))
    return tensors


def _check_output(
    output: object, batch_size: int, num_classes: int, labels: tuple[int, ...]
) -> tuple[int, ...]:
    shapes = [(batch_size, num_classes, *labels)]
    if labels:
        shapes.append((batch_size, *labels, num_classes))
    expected = " or ".join(map(str, shapes)) if num_classes else f"({batch_size}, C, ...)"
    if not isinstance(output, Tensor):
        raise ExportError(
            f"model: output is a {type(output).__name__}, expected a float32 tensor {expected};"
            f" {_one_output(output)}"
        )
    shape = tuple(output.shape)
    right = len(shape) > 1 and shape[0] == batch_size
    if num_classes:
        right = shape in shapes
    if not right or output.dtype != torch.float32:
        hint = _hint(shape[1:], num_classes, labels) if num_classes else ""
        raise ExportError(
            f"model: output is {output.dtype} {shape}, expected float32 {expected}{hint}"
        )
    return shape[1:]


def _one_output(output: object) -> str:
    """Return the fix for an output that is not a tensor, such as the output of a Hugging Face model."""
    held: object = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    items = cast(Mapping[object, object], held)
    names = [name for name, value in items.items() if isinstance(value, Tensor)]
    if not names:
        return "join several tensors in forward (torch.cat), and split them in your own loss"
    name = "logits" if "logits" in names else names[0]
    one = f".{name}" if hasattr(output, str(name)) else f"[{name!r}]"
    return f"let forward return one of its tensors, as in `return self.model(x){one}`"


def _hint(row: tuple[int, ...], num_classes: int, labels: tuple[int, ...]) -> str:
    """Return a hint for outputs whose shape does not match the labels."""
    hint = f", one output for each label from 0 to {num_classes - 1}"
    for axis in (0, len(row) - 1):
        rest = row[:axis] + row[axis + 1 :]
        if len(row) > 1 and row[axis] == num_classes and max(rest) > 1 and not labels:
            extents = ",".join(map(str, rest))
            return f"{hint}; if rows have labels of shape {rest}, use --target-shape {extents}"
    return hint


def _check_unchanged(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name in after.keys() - before.keys():
        if isinstance(after[name], nn.Parameter):
            raise ExportError(f"model: its forward pass adds the parameter {name!r}")
    for name, tensor in before.items():
        if not torch.equal(tensor, after[name]):
            raise ExportError(
                f"model: its forward pass changes {name!r}; only the running statistics of"
                " BatchNorm may change"
            )
