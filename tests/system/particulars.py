"""What is particular to each strategy, as a short run of it shows in store and journals (trio.py).

The checks are of runs of two rounds of training and one of evaluation with ``TRAINING`` and the options
that ``CASES`` (test_strategies_over_mqtt.py) names. What the last training left can be read whole: of it
each device's next start must follow, by simple arithmetic.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.system.trio import DEVICES, Course

from sedge_cloud.algorithms.layers import body, head, parameters
from sedge_cloud.store.rows import OrderRow
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_protocol.codec import decode
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import DeviceScoring, OwnModel, Work

TRAINING = Training(local_epochs=3, learning_rate=0.1, momentum=0.5)
DROPPED = (0.0, 0.25, 0.5)

# The run of another case, to compare with.
Others = Callable[[str], Course]


def training(**changes: object) -> Training:
    """The run's training with these changes."""
    return msgspec.structs.replace(TRAINING, **changes)


def given(course: Course) -> list[OrderRow]:
    """The orders of the second round in the order of the devices."""
    orders = course.orders(2)
    return [orders[device] for device in DEVICES]


def mean_of_trained(course: Course) -> Theta:
    """The mean (n,) by examples of what the devices ended the last round of training with."""
    weights = [course.updates[device].num_examples for device in DEVICES]
    trained = [course.updates[device].trained for device in DEVICES]
    mean: Theta = np.average(trained, axis=0, weights=weights).astype(np.float32)
    return mean


def sizes(course: Course) -> list[int]:
    """The bytes of the updates of the last round of training."""
    return [device.update_bytes for device in course.summaries[-2].devices]


def within(course: Course, *names: str) -> NDArray[np.bool_]:
    """A mask (n,) of the named tensors."""
    return course.layout.mask(names)


def statistics(course: Course) -> NDArray[np.bool_]:
    """A mask (n,) of BatchNorm's statistics, which stay on the device in all of these runs."""
    return within(course, *course.layout.statistics)


def require_averaged(course: Course, fixed: tuple[str, ...] = ()) -> None:
    """The last global is the mean; ``fixed`` tensors and statistics are still the first one's."""
    stays = within(course, *course.layout.statistics, *fixed)
    first, last = course.globals[0], course.globals[-1]
    np.testing.assert_array_equal(last[stays], first[stays])
    mean = mean_of_trained(course)
    np.testing.assert_allclose(last[~stays], mean[~stays], rtol=1e-5, atol=1e-7)
    for name in set(parameters(course.layout)) - set(fixed):
        place = course.layout.by_name[name].slice
        assert (last[place] != first[place]).any(), name


def require_own(course: Course, names: tuple[str, ...]) -> None:
    """In the named tensors every device has values of its own, of which the cloud has heard nothing."""
    own = within(course, *names)
    for device in DEVICES:
        assert not course.delta(device).dense()[own].any()
        values = course.model(device)[own]
        assert (values != course.globals[0][own]).any()
        for other in set(DEVICES) - {device}:
            assert (values != course.model(other)[own]).any()


def require_same_view(course: Course, but: tuple[str, ...] = ()) -> None:
    """What the cloud takes for a device's model is that model; it never hears of statistics and ``but``."""
    told = ~within(course, *course.layout.statistics, *but)
    for device in DEVICES:
        seen, held = course.updates[device].trained, course.model(device)
        np.testing.assert_allclose(seen[told], held[told], rtol=3e-7, atol=1e-7)


def require_begun(course: Course) -> None:
    """In its last order each device has evaluated what store and journal say that it starts from.

    Where a device scores for itself only it can tell.
    """
    for device in DEVICES:
        work = course.last_orders[device].read_work()
        if work.scoring is not None:
            continue
        theta, kept = start_of(course, device), course.kept[device]
        if work.own_model is not None:
            mix = work.own_model.mix
            own = course.model(device) if kept.part is None else kept.part
            theta = (mix * own + (1 - mix) * theta).astype(np.float32)
        expected, found = course.evaluate(device, theta), course.reports(3)[device].before
        assert (found.metric, found.num_examples) == (expected.metric, expected.num_examples)
        assert found.loss == pytest.approx(expected.loss, rel=1e-4)


def start_of(course: Course, device: str) -> Theta:
    """The vector (m,) that a device's last order gives it to start from."""
    order, work = course.last_orders[device], course.last_orders[device].read_work()
    layout, theta = course.run.layout(order.width), course.globals[-1].copy()
    if order.model:
        theta = course.run_store.theta(order.model, layout.size).copy()
    if order.patch_hash:
        indices, values = course.start(device)
        if work.choice is None or course.reports(3)[device].patched:
            theta[indices] = values
    keep = layout.mask(work.keep)
    theta[keep] = course.model(device)[keep]
    return theta


def fedavg(course: Course, _: Others) -> None:
    require_averaged(course)
    require_same_view(course)
    require_own(course, course.layout.statistics)
    for order in (*given(course), *course.last_orders.values()):
        assert course.patch(order) is None
        assert order.read_work() == Work(keep=course.layout.statistics)


def fedprox(course: Course, others: Others) -> None:
    plain = others("fedavg")
    require_averaged(course)
    for order in given(course):
        training = order.read_work().training
        assert training is not None and training.prox == 2.0
    # The devices' shuffles are those of FedAvg's run: all that holds them back is the pull.
    moved, free = (np.linalg.norm(c.globals[1] - c.globals[0]) for c in (course, plain))
    assert moved < 0.9 * free


def local_only(course: Course, _: Others) -> None:
    for theta in course.globals:
        np.testing.assert_array_equal(theta, course.globals[0])
    assert not any(order.read_work().upload for order in given(course))
    assert all(size < 1000 for size in sizes(course))  # a report, and nothing of a model
    models = [course.model(device) for device in DEVICES]
    assert all((model != course.globals[0]).mean() > 0.5 for model in models)
    assert len({model.tobytes() for model in models}) == len(DEVICES)


def ditto(course: Course, others: Others) -> None:
    plain = others("fedavg")
    # The models that are sent know nothing of the own ones: the fleet learns what FedAvg's does.
    np.testing.assert_array_equal(course.globals, plain.globals)
    for order in given(course):
        assert order.read_work().own_model == OwnModel(training(prox=0.5, local_epochs=2))
    for device in DEVICES:
        assert (course.model(device) != course.updates[device].trained).mean() > 0.5
        # Three epochs of the model that is sent, two of its own.
        assert 3 * course.reports(2)[device].steps == 5 * plain.reports(2)[device].steps


def apfl(course: Course, others: Others) -> None:
    plain = others("fedavg")
    np.testing.assert_array_equal(course.globals, plain.globals)
    first, second = course.reports(1), course.reports(2)
    for device in DEVICES:
        mixes = 0.3, first[device].mix, second[device].mix
        # In the first round both parts begin alike: nothing tells alpha where to go.
        assert mixes[1] == 0.3 and mixes[2] not in (None, 0.3)
        orders = [course.orders(number)[device].read_work().own_model for number in (1, 2, 3)]
        assert [personal.mix for personal in orders if personal] == list(mixes)
        part, sent = course.kept[device].part, course.updates[device].trained
        assert part is not None and mixes[2] is not None
        mixture, told = mixes[2] * part + (1 - mixes[2]) * sent, ~statistics(course)
        np.testing.assert_allclose(course.model(device)[told], mixture[told], rtol=1e-5, atol=1e-6)


def fedper(course: Course, _: Others) -> None:
    top = head(course.layout)
    assert top == ("7.weight", "7.bias")
    require_averaged(course, fixed=top)
    require_own(course, top)
    require_same_view(course, but=top)


def lg_fedavg(course: Course, _: Others) -> None:
    require_averaged(course, fixed=body(course.layout))
    require_own(course, body(course.layout))


def fedbn(course: Course, _: Others) -> None:
    assert set(course.layout.normalisation) > set(course.layout.statistics)
    require_averaged(course, fixed=course.layout.normalisation)
    require_own(course, course.layout.normalisation)


def fedrep(course: Course, others: Others) -> None:
    """The run itself freezes a tensor, which shows that devices leave alone what they are told to."""
    plain, top, below = others("fedavg"), head(course.layout), body(course.layout)
    require_averaged(course, fixed=("0.weight", *top))
    require_own(course, top)
    for order in given(course):
        work = order.read_work()
        assert work.training == training(local_epochs=1, freeze=("0.weight", *below))
        assert work.then == (training(local_epochs=2, freeze=("0.weight", *top)),)
    for device in DEVICES:
        assert course.reports(2)[device].steps == plain.reports(2)[device].steps


def fedbabu(course: Course, _: Others) -> None:
    top = within(course, *head(course.layout))
    for theta in course.globals[1:]:
        np.testing.assert_array_equal(theta[top], course.globals[0][top])
        assert (theta[~top] != course.globals[0][~top]).any()
    for device in DEVICES:  # a head fitted to the body, for the device alone
        assert (course.updates[device].trained[top] != course.globals[0][top]).any()
        order = course.orders(2)[device].read_work()
        assert [t.freeze for t in (order.training, *order.then) if t] == [
            head(course.layout),
            body(course.layout),
        ]


def fedselect(course: Course, _: Others) -> None:
    matrices = within(course, *(t.name for t in course.layout.tensors if len(t.shape) > 1))
    for device in DEVICES:
        counts: list[int] = []
        for number in (1, 2, 3):
            patch = course.patch(course.orders(number)[device])
            counts.append(0 if patch is None else patch.count)
        assert counts[0] == 0 < counts[1] < counts[2] < 0.3 * course.layout.size
        indices, values = course.start(device)
        assert matrices[indices].all()
        np.testing.assert_array_equal(values, course.updates[device].trained[indices])
    shared, mean = ~statistics(course), mean_of_trained(course)
    for update in course.updates.values():
        assert update.patch is not None and update.patch.indices is not None
        shared[update.patch.indices] = False
    np.testing.assert_allclose(course.globals[-1][shared], mean[shared], rtol=1e-5, atol=1e-7)


def fedobp(course: Course, _: Others) -> None:
    require_averaged(course)
    require_same_view(course)
    told = ~statistics(course)
    for device in DEVICES:
        assert course.patch(course.orders(1)[device]) is None
        (indices, values), trained = course.start(device), course.updates[device].trained
        scores = (trained - course.globals[-1])[told] ** 2
        expected = np.flatnonzero(told)[scores > np.quantile(scores, 0.95)]
        np.testing.assert_array_equal(indices, expected)
        np.testing.assert_array_equal(values, trained[expected])
    assert sum(course.summaries[-1].personal.values()) == 3 * -(-int(told.sum()) // 20)


def fedobp_on_the_device(course: Course, others: Others) -> None:
    """With q = 0 nearly all is a device's own: it trains as if alone, and yet all are averaged."""
    require_scored_by_devices(course, FedOBP(0.0, scoring="device"))
    alone = others("local_only")
    for device in DEVICES:
        np.testing.assert_allclose(course.model(device), alone.model(device), rtol=1e-3, atol=1e-4)


def fedobp_by_gradient(course: Course, _: Others) -> None:
    require_scored_by_devices(course, FedOBP(0.95, "fisher", scoring="device"))
    gradients = {course.kept[device].entry.kept.gradient for device in DEVICES}
    assert len(gradients) == len(DEVICES) and None not in gradients


def fedobp_picking(course: Course, _: Others) -> None:
    """Each device applies its patch if that helps; the cloud learns whether."""
    require_averaged(course)
    require_same_view(course)
    for device in DEVICES:
        assert course.start(device)[0].size
        patched, patch = course.reports(2)[device].patched, course.updates[device].patch
        assert patched is (patch is not None)


def require_scored_by_devices(course: Course, strategy: FedOBP) -> None:
    """No patch has travelled; and the cloud knows, from the global model on, what devices have learned."""
    require_averaged(course)
    require_same_view(course)
    assert course.run.strategy == strategy
    for order in (*given(course), *course.last_orders.values()):
        assert course.patch(order) is None
        assert order.read_work().scoring == DeviceScoring(strategy.quantile, strategy.score)


def fedpurin(course: Course, _: Others) -> None:
    norms, groups = course.layout.normalisation, course.context.groups
    require_own(course, norms)
    expected = np.zeros(course.layout.size)
    weights = sum(update.num_examples for update in course.updates.values())
    for device, update in course.updates.items():
        assert course.reports(2)[device].sparse is not None
        expected += update.num_examples / weights * sparse(course, device)
        for tensor in course.layout.tensors:
            count = np.count_nonzero(within(course, tensor.name)[course.delta(device).indices])
            wanted = 0 if tensor.name in norms else int(0.25 * tensor.size)
            assert count == wanted, tensor.name
    kept, last = within(course, *norms), course.globals[-1]
    np.testing.assert_array_equal(last[kept], course.globals[0][kept])
    np.testing.assert_allclose(last[~kept], expected[~kept], rtol=1e-5, atol=1e-7)
    assert groups
    for device in DEVICES:
        indices, values = course.start(device)
        np.testing.assert_array_equal(indices, course.delta(device).indices)
        models = [sparse(course, other) for other in (device, *groups.get(device, ()))]
        np.testing.assert_allclose(values, np.mean(models, 0)[indices], rtol=1e-5, atol=1e-7)


def sparse(course: Course, device: str) -> Theta:
    """What the cloud has of a device's model (n,) after the last training, zero elsewhere."""
    theta, sent = np.zeros(course.layout.size, np.float32), course.delta(device).indices
    theta[sent] = course.updates[device].trained[sent]
    return theta


def fedpurin_alone(course: Course, _: Others) -> None:
    """After beta a device starts from its own values, which it holds: nothing but their name travels."""
    assert not course.context.groups
    for device in DEVICES:
        order, entry = course.last_orders[device], course.kept[device].entry
        assert order.patch_blob == entry.kept.patch is not None and not order.patch
        indices, values = course.start(device)
        np.testing.assert_array_equal(values, sparse(course, device)[indices])


def fedcac(course: Course, _: Others) -> None:
    require_averaged(course)
    groups = course.context.groups
    assert groups
    for device in DEVICES:
        (indices, values), update = course.start(device), course.updates[device]
        scores = np.abs(course.delta(device).dense() * update.trained)
        for name in parameters(course.layout):
            tensor = course.layout.by_name[name]
            critical = scores[indices[within(course, name)[indices]]]
            largest = np.sort(scores[tensor.slice])[tensor.size - int(0.25 * tensor.size) :]
            np.testing.assert_array_equal(np.sort(critical), largest)
        models = [course.updates[other].trained for other in (device, *groups.get(device, ()))]
        np.testing.assert_allclose(values, np.mean(models, 0)[indices], rtol=1e-5, atol=1e-7)


def require_widths(course: Course) -> None:
    """Every device has had the model that its memory has room for, and nothing else."""
    for width, device in enumerate(DEVICES):
        layout, entry = course.run.layout(width), course.kept[device].entry
        assert {course.orders(number)[device].width for number in (1, 2, 3)} == {width}
        assert course.reports(2)[device].layout_hash == layout.hash
        assert entry.bundle == course.run.bundles[width].sha256
        assert course.model(device).shape == (layout.size,)
    assert sizes(course) == sorted(sizes(course), reverse=True)


def places(course: Course, width: int, shift: int) -> NDArray[np.intp]:
    """Where in the whole model the elements (m,) of a width lie, its channels from ``shift`` on."""
    axes, found = course.run.manifest.axes, []
    assert axes is not None
    for tensor, form, dims in zip(
        course.layout.tensors, course.run.layout(width).tensors, axes.dims, strict=True
    ):
        grid = np.arange(tensor.size).reshape(tensor.shape) + tensor.offset
        for dim, axis in enumerate(dims):
            if axis >= 0:
                channels = axes.channels[axis]
                beside = tensor.shape[dim] // channels
                kept = form.shape[dim] // beside
                chosen = [
                    (shift + c) % channels * beside + p for c in range(kept) for p in range(beside)
                ]
                grid = grid.take(chosen, dim)
        found.append(grid.ravel())
    return np.concatenate(found)


def require_windows(course: Course, shift: int) -> None:
    """In the second round devices started from the channels from ``shift`` on, and these were averaged."""
    before, after = course.globals[1:]
    total, count = np.zeros(before.size), np.zeros(before.size)
    for width, device in enumerate(DEVICES):
        # The whole model has no window.
        place, update = places(course, width, shift if width else 0), course.updates[device]
        np.testing.assert_array_equal(update.base, before[place])
        total[place] += update.trained
        count[place] += 1
    assert set(count) == {1, 2, 3}
    told = ~statistics(course)
    np.testing.assert_allclose(after[told], (total / count)[told], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(after[~told], before[~told])


def heterofl(course: Course, _: Others) -> None:
    require_widths(course)
    require_windows(course, 0)


def fedrolex(course: Course, _: Others) -> None:
    require_widths(course)
    require_windows(course, 1)


def subflot(course: Course, _: Others) -> None:
    require_widths(course)
    last = course.globals[-1]
    for width, device in enumerate(DEVICES):
        pulled = course.orders(2)[device].read_work().training or TRAINING
        assert pulled.prox == pytest.approx(2 * 0.3 * DROPPED[width])
        order, layout = course.last_orders[device], course.run.layout(width)
        start = course.run_store.theta(order.model, layout.size)
        own = course.updates[device].trained
        carried = layout.views(2 * start - own)  # the global model in the device's neurons
        whole = course.layout.views(last)
        np.testing.assert_allclose(carried["7.bias"], whole["7.bias"], atol=1e-5)
        filters = carried["0.weight"].reshape(len(carried["0.weight"]), -1)
        known = whole["0.weight"].reshape(8, -1)
        apart = np.abs(filters[:, None] - known[None]).max(axis=2)
        assert (apart.min(axis=1) < 1e-5).all()
        assert len(set(apart.argmin(axis=1))) == len(filters)


def scaffold(course: Course, _: Others) -> None:
    """What each device is given to add is c less its own variate, which follows from what it has sent."""
    variate, given_next = course.context.arrays["variate"], []
    rate = TRAINING.learning_rate
    for device in DEVICES:
        orders = [course.orders(number)[device] for number in (1, 2, 3)]
        assert not orders[0].correction  # everything begins at 0
        added, following = correction(course, orders[1]), correction(course, orders[2])
        slope = course.delta(device).dense() / (course.reports(2)[device].steps * rate)
        np.testing.assert_allclose(following, variate + added + slope, rtol=1e-4, atol=1e-5)
        assert not following[statistics(course)].any() and (following != 0).mean() > 0.5
        given_next.append(following)
    # All took part in every round: c is the mean of the devices' own.
    np.testing.assert_allclose(np.mean(given_next, axis=0), 0, atol=1e-5)
    # Devices count alike.
    first, last = course.globals[-2:]
    mean = np.mean([course.delta(device).dense() for device in DEVICES], axis=0)
    told = ~statistics(course)
    np.testing.assert_allclose((last - first)[told], mean[told], rtol=1e-4, atol=1e-6)


def correction(course: Course, order: OrderRow) -> Theta:
    """What an order gives a device to add to its gradients (n,)."""
    return decode(course.run_store.store.blobs.read(order.correction), course.layout.size).dense()


def own_strategy(course: Course, _: Others) -> None:
    first, before, after = course.globals
    told = ~statistics(course)
    expected = mean_of_trained(course) + 0.5 * (before - first)
    np.testing.assert_allclose(after[told], expected[told], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(course.context.arrays["step"], after - before, atol=1e-6)
