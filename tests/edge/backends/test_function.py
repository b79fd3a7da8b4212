"""A training function of the user's as a backend: what it gets, may return, and cannot promise."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from msgspec import structs
from tests.edge.backends.softmax import B, C, F, N, bundle, examples, never, start

from sedge_edge.backends import UserCode, impossible_features, open_trainer, usable_backends
from sedge_edge.training.trainer import (
    Exchange,
    Guidance,
    SecondModel,
    Trainer,
    TrainingDiverged,
    TrainingStopped,
    TrainRequest,
)
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.frozen import frozen_data
from sedge_protocol.wire.objective import LOSS, Metric
from sedge_protocol.wire.training import Training

Client: TypeAlias = Callable[..., Trainer]
# A client that counts and moves, and keeps what it was given.
GOOD = """
import numpy as np
seen = []

def fit(parameters, examples, settings):
    seen.append((parameters, examples, settings))
    parameters[0] += 1
    return [parameters[0], parameters[1].astype(np.float64) + 2], len(examples.targets), {"loss": 0.5}

def evaluate(parameters, examples):
    return np.float32(parameters[0].mean()), len(examples.targets), {"accuracy": 0.25}

def predict(parameters, inputs):
    return inputs @ parameters[0] + parameters[1]
"""


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Client:
    """Opens a client's source as the backend "user_N:fit", for the softmax regression's layout."""

    def opened(source: str, made_of: Bundle | None = None) -> Trainer:
        name = f"user_{len(list(tmp_path.iterdir()))}_{abs(hash(request.node.name))}"
        (tmp_path / f"{name}.py").write_text(source)
        return open_trainer(made_of or bundle({}), f"{name}:fit", 2, UserCode(tmp_path))

    return opened


def test_what_a_function_is_given_and_returns(client: Client) -> None:
    trainer, theta, data = client(GOOD), start(), examples(11)
    training = Training(3, 0.1, 0.9)
    trained = trainer.train(TrainRequest(theta, training, 7), data, never)
    np.testing.assert_array_equal(theta, start())
    np.testing.assert_array_equal(trained.theta[: F * C], theta[: F * C] + 1)
    np.testing.assert_array_equal(trained.theta[F * C :], theta[F * C :] + 2)
    assert trained.theta.dtype == np.float32
    assert (trained.loss, trained.num_examples, trained.gradient) == (0.5, 11, None)
    assert trained.steps == 3 * 3
    module = next(m for name, m in sys.modules.items() if name.startswith("user_") and m.seen)
    ((parameters, given, settings),) = module.seen
    assert [array.shape for array in parameters] == [(F, C), (C,)]
    np.testing.assert_array_equal(given.inputs, data.inputs)
    np.testing.assert_array_equal(given.targets, data.targets)
    assert settings == {
        **structs.asdict(training), "batch_size": B, "seed": 7, "threads": 2,
        "settings": {}, "arrays": {}, "returns": {},
    }  # fmt: skip
    module.seen.clear()


def test_settings_and_arrays_go_in_and_arrays_come_out(client: Client) -> None:
    source = GOOD.replace(
        '{"loss": 0.5}',
        '{"loss": 0.5, "arrays": {"twice": settings["settings"]["by"] * settings["arrays"]["means"]'
        '.reshape(1, 3), "more": [1]}}',
    )
    given = {"means": np.array([1, 2, 3], np.float32)}
    request = TrainRequest(
        start(), Training(), 0, exchange=Exchange({"by": 2}, given, {"twice": 3})
    )
    arrays = client(source).train(request, examples(4), never).arrays
    assert list(arrays) == ["twice"] and arrays["twice"].dtype == np.float32
    np.testing.assert_array_equal(arrays["twice"], [2, 4, 6])
    np.testing.assert_array_equal(given["means"], [1, 2, 3])


WRONG_ARRAYS = {
    "[1]": ("found 'list', expected a dict of arrays by name", ConfigError),
    "{'other': [1]}": (r"found \['other'\], expected means as well", ConfigError),
    "{'means': [1]}": (r"found 'int64 \(1,\)', expected 2 numbers as means", ConfigError),
    "{'means': ['a', 'b']}": (r"found '<U1 \(2,\)', expected 2 numbers as means", ConfigError),
    "{'means': [1, float('nan')]}": ("means is not finite", TrainingDiverged),
    "{'means': [1, 1e60]}": ("means is not finite", TrainingDiverged),
}


@pytest.mark.parametrize("arrays", WRONG_ARRAYS)
def test_wrong_arrays_are_named(client: Client, arrays: str) -> None:
    text, kind = WRONG_ARRAYS[arrays]
    source = GOOD.replace('{"loss": 0.5}', f'{{"loss": 0.5, "arrays": {arrays}}}')
    request = TrainRequest(start(), Training(), 0, exchange=Exchange(returns={"means": 2}))
    with pytest.raises(kind, match=f'^user_.*:fit: "arrays": {text}'):
        client(source).train(request, examples(4), never)


def test_evaluation_and_prediction(client: Client) -> None:
    trainer, data = client(GOOD), examples(5)
    found = trainer.evaluate(start(), data)
    assert found.loss == pytest.approx(start()[: F * C].mean())
    assert (found.metric, found.num_examples) == (0.25, 5)
    logits = data.inputs @ start()[: F * C].reshape(F, C) + start()[F * C :]
    np.testing.assert_allclose(trainer.predictor(start())(data.inputs), logits, rtol=1e-6)


def test_without_a_loss_the_trained_model_is_evaluated_on_the_training_examples(
    client: Client,
) -> None:
    trainer = client(GOOD.replace('{"loss": 0.5}', "{}"))
    trained = trainer.train(TrainRequest(start(), Training(), 0), examples(4), never)
    assert trained.loss == pytest.approx(trained.theta[: F * C].mean())


def test_fewer_examples_weigh_less(client: Client) -> None:
    trainer = client(GOOD.replace('len(examples.targets), {"loss"', '3, {"loss"'))
    assert trainer.train(TrainRequest(start(), Training(), 0), examples(4), never).num_examples == 3


def test_frozen_tensors_follow_the_parameters(client: Client) -> None:
    made, values = bundle({}), np.arange(6, dtype=np.float32)
    data = frozen_data(Layout.of([("body", (2, 3), Role.PARAMETER)]), values)
    manifest = structs.replace(made.manifest, frozen=data)
    given = structs.replace(made, manifest=manifest, frozen=values)
    adding = GOOD.replace("parameters[0] += 1", "parameters[0] += parameters[2][1, 2]")
    trained = client(adding, given).train(TrainRequest(start(), Training(), 0), examples(4), never)
    np.testing.assert_array_equal(trained.theta[: F * C], start()[: F * C] + 5)


NO = "does not support it; of prox, freeze, optimizer, schedule, it honours none of them$"
CALLS: dict[str, tuple[Training, dict[str, Any]]] = {
    "prox": (Training(prox=0.1), {}),
    "freeze": (Training(freeze=("W",)), {}),
    "optimizer": (Training(optimizer="adam"), {}),
    "schedule": (Training(warmup_steps=2), {}),
    "average": (Training(average=0.5), {}),
    "the last batch's gradient": (Training(), {"gradient": True}),
    "correction": (Training(), {"correction": np.zeros(N, np.float32)}),
    "loss": (Training(), {"guidance": Guidance({}, {})}),
    "own_model": (Training(), {"second": SecondModel(start(2), 0.5, False)}),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_a_function_does_not_promise_is_declined(client: Client, what: str) -> None:
    training, more = CALLS[what]
    with pytest.raises(CodecError, match=f"^order: {what}: user_.*:fit {NO}"):
        client(GOOD).train(TrainRequest(start(), training, 0, **more), examples(4), never)


def test_a_function_does_what_it_says_that_it_honours(client: Client, tmp_path: Path) -> None:
    says = GOOD + '\nfit.honours = ("prox", "freeze")\n'
    trainer, training = client(says), Training(prox=0.1, freeze=("b",))
    found = trainer.train(TrainRequest(start(), training, 0), examples(4), never).theta
    np.testing.assert_array_equal(found[F * C :], start()[F * C :], "frozen whatever it does")
    assert (found[: F * C] != start()[: F * C]).all()
    with pytest.raises(CodecError, match=r"^order: prox towards another model: "):
        trainer.train(TrainRequest(start(), training, 0, anchor=start(2)), examples(4), never)
    with pytest.raises(CodecError, match=r"^order: optimizer: .* it honours freeze, prox$"):
        trainer.train(TrainRequest(start(), Training(optimizer="adam"), 0), examples(4), never)
    (tmp_path / "says.py").write_text(says)
    never_does = {"own_model", "select", "scoring", "correction", "average", "loss"}
    assert impossible_features("says:fit", tmp_path) == {*never_does, "optimizer", "schedule"}
    assert usable_backends("says:fit") == ("function",)
    assert "function" not in usable_backends("auto")
    assert impossible_features("auto", tmp_path) == {"settings", "arrays"}


def test_stopping_before_it_begins(client: Client) -> None:
    with pytest.raises(TrainingStopped):
        client(GOOD).train(TrainRequest(start(), Training(), 0), examples(4), lambda: True)


FIT = "def fit(parameters, examples, settings):\n    "
EVALUATE = "\ndef evaluate(parameters, examples):\n    return 0.5, 1, {'accuracy': 0.5}\n"
WRONG_FITS = {
    "return parameters": ("found 'list'", ConfigError),
    "return parameters, 4": (r"found '\(list, int\)'", ConfigError),
    "return parameters, 4, 0.5": (r"found '\(list, int, float\)'", ConfigError),
    "return None, 4, {}": ("found 'NoneType', expected a list of 2 arrays", ConfigError),
    "return parameters[:1], 4, {}": (
        "found '1 arrays', expected 2, one for each tensor of the layout", ConfigError,
    ),
    "return [parameters[0].T, parameters[1]], 4, {}": (
        r"found 'float32 \(3, 5\) for W', expected floating-point numbers \(5, 3\)", ConfigError,
    ),
    "return [p.astype(int) for p in parameters], 4, {}": (
        r"found 'int64 \(5, 3\) for W', expected floating-point", ConfigError,
    ),
    "return [['a'], [[1], [2, 3]]], 4, {}": ("found 'ValueError: .*, expected arrays", ConfigError),
    "return [p + float('nan') for p in parameters], 4, {}": (
        "18 parameters are not finite", TrainingDiverged,
    ),
    "return [p.astype(float) * 1e60 for p in parameters], 4, {}": (
        "18 parameters are not finite", TrainingDiverged,
    ),
    "return parameters, 5, {}": ("found 5, expected a number of examples from 1 to 4", ConfigError),
    "return parameters, 0, {}": ("found 0, expected a number of examples from 1 to 4", ConfigError),
    "return parameters, 4.0, {}": ("found 4.0, expected a number of examples", ConfigError),
    "return parameters, 4, {'loss': float('inf')}": ('"loss" is inf', TrainingDiverged),
    "return parameters, 4, {'loss': 'low'}": (
        "found 'str', expected a number as \"loss\"", ConfigError,
    ),
    "1 / 0": ("found 'ZeroDivisionError: division by zero', expected a tuple", ConfigError),
    "raise SystemExit('bye')": ("found 'SystemExit: bye', expected", ConfigError),
    "examples.inputs[0] = 0": (
        "found 'ValueError: assignment destination is read-only'", ConfigError,
    ),
    "examples.targets += 1": ("found 'ValueError: output array is read-only'", ConfigError),
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG_FITS)
def test_a_wrong_fit_is_named(client: Client, body: str) -> None:
    message, kind = WRONG_FITS[body]
    data = examples(4)
    with pytest.raises(kind, match=f"^user_.*:fit: {message}"):
        client(FIT + body + EVALUATE).train(TrainRequest(start(), Training(), 0), data, never)
    np.testing.assert_array_equal(data.inputs, examples(4).inputs)
    data.inputs[0] = 0  # the device's own examples are as writable as before


def test_the_bundles_metric_is_taken(client: Client) -> None:
    source = (
        f"{FIT}return parameters, 4, {{}}\ndef evaluate(parameters, examples):\n    return 0.5, 4, "
    )
    for metric, found, expected in (
        (Metric("rmse", "lower"), "{'rmse': 57, 'accuracy': 0.5}", 57.0),
        (LOSS, "{}", 0.5),
    ):
        manifest = structs.replace(bundle({}).manifest, metric=metric)
        trainer = client(source + found, Bundle(manifest, {}))
        assert trainer.evaluate(start(), examples(4)).metric == expected


WRONG_EVALUATIONS = {
    "return 0.5": ("found 'float', expected a tuple (mean loss, number", ConfigError),
    "return 0.5, 4, {}": ('found [], expected metrics with "accuracy"', ConfigError),
    "return 0.5, 4, {'accuracy': 57}": ('found 57.0, expected "accuracy" from 0 to 1', ConfigError),
    "return float('nan'), 4, {'accuracy': 1}": ("the mean loss is nan", TrainingDiverged),
    "return 'low', 4, {'accuracy': 1}": ("found 'str', expected a number as the mean", ConfigError),
    "return 0.5, None, {'accuracy': 1}": ("missing, expected a number of exam", ConfigError),
    "return undefined": ("found \"NameError: name 'undefined' is not", ConfigError),
}


@pytest.mark.parametrize("body", WRONG_EVALUATIONS)
def test_a_wrong_evaluation_is_named(client: Client, body: str) -> None:
    text, kind = WRONG_EVALUATIONS[body]
    source = f"{FIT}return parameters, 4, {{}}\ndef evaluate(parameters, examples):\n    {body}\n"
    with pytest.raises(kind) as caught:
        client(source).evaluate(start(), examples(4))
    assert ":evaluate: " in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import no_such_package", r"\(it imports no_such_package, which is not installed\)"),
        ("def fit(:", r"\(SyntaxError: "),
        ("raise SystemExit", r"\(SystemExit: \)"),
        ("def other(): pass", r"\(.* has no 'fit'\)"),
        ("fit = 3", "expected a function, not a int"),
        (FIT + "pass", r"has no 'evaluate'\)"),
        (GOOD + "fit.honours = ('prox', 'speed')", r"honours: .* expected a tuple of prox, freeze"),
        (GOOD + "fit.honours = 'prox'", r"honours: .* expected a tuple of prox, freeze"),
    ],
)
def test_a_function_that_cannot_be_used(client: Client, source: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        client(source)
