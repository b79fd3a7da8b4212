"""What is trained, in which batches."""

from tests.emulate.training import trainings

from sedge_protocol.wire.training import Training


def test_batches_are_a_devices() -> None:
    of = trainings.problem("batchnorm")
    (task, *_) = trainings.devices(of, Training(local_epochs=2, last_batch="pad"))
    found = list(of.batches(task))
    assert [batch.epoch for batch in found] == [0, 0, 0, 1, 1, 1]
    assert all(batch.weights.all() for batch in found), "padding where statistics would count it"
    padded = list(trainings.problem("mlp").batches(task))
    assert padded[2].weights.sum() == 4
