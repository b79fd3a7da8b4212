"""Small hostile programs of every operator, each run in onnxruntime in a process of its own.

    python -m tests.edge.backends.hostile [--count 9000] [--seed 1] [--unchecked]

A program is one node as it should be, then changed up to three times: another constant or input, another
number in either, another attribute, a name without text, an input or output more or less. Prints what ended
a process, or took more than ten seconds, and how many programs the device's check took. ``--unchecked``
runs what it refuses as well.
"""

import argparse
import os
import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from sedge_protocol.errors import CodecError
from sedge_protocol.host.onnx_runtime import library
from sedge_protocol.wire.operators import OPERATORS, SCAN
from sedge_protocol.wire.program import OPSET, check_program

Array = NDArray[Any]
SECONDS = 10
HOSTILE = [
    0, -1, 1, 2, 3, -2, 7, 100, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63),
]  # fmt: skip


def numbers(*shape: int) -> Array:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


class Case(NamedTuple):
    """A node that is as it should be; its outputs are counted."""

    inputs: list[Array | None]
    attributes: dict[str, Any]
    outputs: int = 1


X, W, MANY = numbers(1, 2, 6, 6), numbers(2, 2, 3, 3), numbers(3, 3)
WINDOW = {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "kernel_shape": [3, 3]}
REDUCED = Case([MANY, ints(0)], {"keepdims": 1})
CASES = {
    "And": Case([MANY > 2, MANY > 3], {}),
    "Or": Case([MANY > 2, MANY > 3], {}),
    "Not": Case([MANY > 2], {}),
    "ArgMax": Case([MANY], {"axis": 1, "keepdims": 0}),
    "AveragePool": Case([X], {"kernel_shape": [2, 2], "strides": [1, 1], "pads": [0, 0, 1, 1]}),
    "BatchNormalization": Case([numbers(2, 3, 4), *[numbers(3)] * 4], {"epsilon": 0.0}),
    "Cast": Case([MANY], {"to": 7}),
    "Concat": Case([MANY, MANY], {"axis": 0}),
    "ConstantOfShape": Case([ints(2, 3)], {}),
    "Conv": Case([X, W, numbers(2)], {**WINDOW, "group": 1}),
    "ConvTranspose": Case([X, W, numbers(2)], {**WINDOW, "group": 1, "output_padding": [0, 0]}),
    "CumSum": Case([MANY, ints(1)], {}),
    "Div": Case([ints(7, -(2**63)), ints(2, 3)], {}),
    "Mod": Case([ints(7, -(2**63)), ints(2, 3)], {"fmod": 1}),
    "Expand": Case([numbers(3, 1), ints(3, 4)], {}),
    "Gather": Case([MANY, ints(0, 2)], {"axis": 1}),
    "GatherElements": Case([MANY, ints(0, 2, 1).reshape(1, 3)], {"axis": 0}),
    "Gemm": Case([numbers(2, 3), numbers(3, 4), numbers(4)], {"transA": 0, "transB": 0}),
    "LogSoftmax": Case([MANY], {"axis": 1}),
    "MaxPool": Case([X], {**WINDOW, "ceil_mode": 0}, 2),
    "Pad": Case([numbers(2, 3), ints(1, 1, 0, 0), np.float32(3) * numbers(1)], {}),
    "Range": Case([ints(0).reshape(()), ints(9).reshape(()), ints(2).reshape(())], {}),
    "ReduceMax": REDUCED,
    "ReduceMean": REDUCED,
    "ReduceMin": REDUCED,
    "ReduceSum": REDUCED,
    "Reshape": Case([numbers(3, 4), ints(2, -1)], {}),
    "ScatterElements": Case([MANY, ints(0, 2, 1).reshape(1, 3), numbers(1, 3)], {"axis": 0}),
    "ScatterND": Case([MANY, ints(0, 2).reshape(2, 1), numbers(2, 3)], {"reduction": "add"}),
    "Slice": Case([MANY, ints(0, 2), ints(3, -4), ints(0, 1), ints(2, -1)], {}),
    "Softmax": Case([MANY], {"axis": 1}),
    "Split": Case([MANY, ints(1, 2)], {"axis": 0}, 2),
    "Tile": Case([MANY, ints(2, 1)], {}),
    "Transpose": Case([MANY], {"perm": [1, 0]}),
    "Where": Case([MANY > 2, MANY, MANY], {}),
}
ONE = {"Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "Identity", "LeakyRelu", "Log", "Neg",
       "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sqrt", "Tanh"}  # fmt: skip
for name in OPERATORS - CASES.keys() - {SCAN}:
    CASES[name] = Case([MANY] if name in ONE else [MANY, MANY], {})
POOL: list[Array | None] = [
    None, numbers(), numbers(3), numbers(0), numbers(2, 0, 3), X, W, MANY, MANY > 2, MANY * np.nan,
    ints(0), ints(-1), ints(-(2**63)), ints(2**32, 2**32), ints(*[1] * 20), ints(), ints(-1).reshape(()),
]  # fmt: skip


def changed(rng: random.Random, case: Case) -> Case:
    inputs, attributes, outputs = list(case.inputs), dict(case.attributes), case.outputs

    def another_input() -> None:
        inputs[rng.randrange(len(inputs))] = rng.choice(POOL)

    def another_number() -> None:
        at = rng.randrange(len(inputs))
        given = inputs[at]
        if given is not None and given.dtype == np.int64 and given.size:
            flat = given.reshape(-1).copy()
            flat[rng.randrange(flat.size)] = rng.choice(HOSTILE)
            inputs[at] = flat.reshape(given.shape)

    def another_attribute() -> None:
        for key in rng.sample(sorted(attributes), min(1, len(attributes))):
            value = attributes[key]
            if isinstance(value, list):
                attributes[key] = [*value]
                attributes[key][rng.randrange(len(value))] = rng.choice(HOSTILE)
            elif isinstance(value, int):
                attributes[key] = rng.choice(HOSTILE)

    def more_or_less() -> None:
        nonlocal outputs
        outputs = max(1, outputs + rng.choice([-1, 0, 1]))
        if len(inputs) > 1 and rng.random() < 0.5:
            inputs.pop()

    ways: list[Callable[[], None]] = [
        another_input,
        another_number,
        another_attribute,
        more_or_less,
    ]
    for _ in range(rng.choice([1, 1, 2, 3])):
        rng.choice(ways)()
    return Case(inputs, attributes, outputs)


def program(rng: random.Random, operator: str, case: Case) -> tuple[bytes, dict[str, Array]]:
    """A program of one node, and what to feed it: half of the time its inputs, otherwise nothing of it."""
    given = {f"i{at}": one for at, one in enumerate(case.inputs) if one is not None}
    fed = {key: one for key, one in given.items() if rng.random() < 0.5}
    read = [f"i{at}" if one is not None else "" for at, one in enumerate(case.inputs)]
    made = [f"o{at}" if rng.random() > 0.02 else "" for at in range(case.outputs)]
    nodes = [helper.make_node(operator, read, made, **case.attributes)]
    ends = ["x"]
    for key in filter(None, made):  # whatever its shape, one number of each output is needed
        nodes += [
            helper.make_node("Cast", [key], [f"{key} cast"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", [f"{key} cast", "flat"], [f"{key} flat"]),
            helper.make_node("ReduceSum", [f"{key} flat", "first"], [f"{key} sum"], keepdims=1),
        ]
        ends.append(f"{key} sum")
    nodes.append(helper.make_node("Sum", ends, ["y"]))
    inputs = {**fed, "x": numbers(1)}
    constants = {key: one for key, one in given.items() if key not in fed}
    constants |= {"flat": ints(-1), "first": ints(0)}
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                key, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape
            )
            for key, one in inputs.items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.asarray(one), key) for key, one in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString(), inputs


def taken(data: bytes) -> bool:
    try:
        check_program(data)
    except CodecError:
        return False
    return True


def end_of(data: bytes, inputs: dict[str, Array]) -> int:
    """The signal that ended a process which loads and runs the program; 0 for none."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            options = library().SessionOptions()
            options.intra_op_num_threads = 1
            library().InferenceSession(data, options).run(None, inputs)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def main() -> None:
    """Print each program that ended its process, then how many ran and how many the check took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=9000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unchecked", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    library()  # before the first fork
    accepted = ended = slow = 0
    for _ in range(arguments.count):
        operator = rng.choice(sorted(CASES))
        case = changed(rng, CASES[operator])
        data, inputs = program(rng, operator, case)
        good = taken(data)
        accepted += good
        if (good or arguments.unchecked) and (number := end_of(data, inputs)):
            late = number == signal.SIGALRM
            slow, ended = slow + late, ended + (not late)
            print(signal.Signals(number).name, operator, case)
    print(f"{arguments.count} programs, {accepted} taken, {ended} ended their process, {slow} slow")


if __name__ == "__main__":
    main()
