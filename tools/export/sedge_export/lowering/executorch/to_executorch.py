"""Compiles traced ATen graphs to one ExecuTorch file (.pte) with a method for each program.

Each graph is traced again through the rules of ``table``, simplified, and passed to ExecuTorch's own
compiler. That compiler delegates supported parts to XNNPACK and plans the memory for everything else.
Each remaining operator must have a kernel in ExecuTorch's runtime.
"""

import operator
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from sedge_export.lowering.executorch.runtime import kernels, quiet
from sedge_export.lowering.executorch.simplify import simplified
from sedge_export.lowering.missing import missing
from sedge_export.lowering.rules.table import RULES, Rule, decompositions
from sedge_export.stages import Where
from sedge_protocol.errors import ExportError

aten = torch.ops.aten
POOL = aten.max_pool2d_with_indices.default
POOL_BACKWARD = aten.max_pool2d_with_indices_backward.default


def to_executorch(graphs: Mapping[str, fx.GraphModule], where: Where) -> bytes:
    """Compile the graphs to one file with a method for each graph, named after it.

    Raises ``ExportError`` naming the first operator that has neither a rule nor a kernel; ``where`` says
    which module of the model it came from.
    """
    with quiet():
        prepared = {name: _prepared(graph, where) for name, graph in graphs.items()}
        return _compiled(prepared)


def _prepared(traced: fx.GraphModule, where: Where) -> torch.export.ExportedProgram:
    _check_pooling(traced.graph, where)
    inputs = tuple(
        torch.zeros(spec.shape, dtype=spec.dtype)
        for spec in (node.meta["val"] for node in traced.graph.find_nodes(op="placeholder"))
    )
    rules = {target: _guarded(target, rule, where) for target, rule in RULES.items()}
    table = {**decompositions(), **rules}
    retrace = make_fx(
        traced, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True
    )
    module = retrace(*inputs)
    module.graph.eliminate_dead_code()
    module = simplified(module)
    _check_kernels(module.graph, where)
    return torch.export.export(module, inputs)


def _guarded(target: OpOverload, rule: Rule, where: Where) -> Rule:
    def apply(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except ExportError as exc:
            raise ExportError(f"cannot lower {target}{where(target)}: {exc}") from exc

    return apply


def _check_pooling(graph: fx.Graph, where: Where) -> None:
    """Refuse a graph that uses max pooling's indices outside its gradient: no rule computes them."""
    for pool in graph.find_nodes(op="call_function", target=POOL):
        for output in pool.users:
            others = [user for user in output.users if user.target is not POOL_BACKWARD]
            if output.target is operator.getitem and output.args[1] == 1 and others:
                raise ExportError(f"cannot lower {POOL}{where(POOL)}: its indices are used")


def _check_kernels(graph: fx.Graph, where: Where) -> None:
    for node in graph.nodes:
        target = node.target
        if isinstance(target, OpOverload) and target._schema.name not in kernels():
            raise missing(target, where, "ExecuTorch has no kernel for it")


def _compiled(programs: dict[str, torch.export.ExportedProgram]) -> bytes:
    exir: Any = import_module("executorch.exir")
    passes: Any = import_module("executorch.exir.passes")
    partition: Any = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    config = exir.EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    try:
        # to_edge's successor decomposes two more times: it takes twice as long and makes the same file.
        with _decomposed_once():
            edge = exir.to_edge(programs, compile_config=config)
        with _one_pass():
            edge = edge.to_backend(partition.XnnpackPartitioner())
        # Inputs and outputs stay in the caller's memory. If they were planned, they would be copied in
        # and out.
        planning = passes.MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
        final = exir.ExecutorchBackendConfig(memory_planning_pass=planning)
        return bytes(edge.to_executorch(final).buffer)
    except Exception as exc:  # a compiler's errors have no common base class
        reason = str(exc).partition("\n")[0]
        raise ExportError(f"executorch cannot compile it: {type(exc).__name__}: {reason}") from exc


@contextmanager
def _decomposed_once() -> Generator[None]:
    """Within a ``with`` block, leave graphs without decomposable or in-place operators as they are.

    Nearly all graphs have neither. Tracing them again would change nothing and take a third of the
    compiler's time.
    """
    program = torch.export.ExportedProgram
    right: Any = program.run_decompositions

    def run(self: torch.export.ExportedProgram, table: Any = None) -> Any:
        targets = {each.target for each in self.graph.nodes if isinstance(each.target, OpOverload)}
        left = any(target in table or target._schema.is_mutable for target in targets)
        return right(self, table) if left else self

    changed: Any = program
    changed.run_decompositions = run
    try:
        yield
    finally:
        changed.run_decompositions = right


@contextmanager
def _one_pass() -> Generator[None]:
    """Within a ``with`` block, make XNNPACK run only the pass that helps: it fuses a product and its clamp.

    The other passes search each of many delegates for patterns that these graphs do not contain, and
    two of them first compile examples of their patterns. Together these passes took nine tenths of the
    time.
    """
    preprocess: Any = import_module("executorch.backends.xnnpack.xnnpack_preprocess")
    passes: Any = import_module("executorch.backends.xnnpack._passes")
    fuse = passes.FuseActivationPass

    def manager(program: object, passes: object = None) -> object:
        return every(program, [fuse])

    every, preprocess.XNNPACKPassManager = preprocess.XNNPACKPassManager, manager
    try:
        yield
    finally:
        preprocess.XNNPACKPassManager = every
