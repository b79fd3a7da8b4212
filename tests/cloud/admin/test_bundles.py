"""Bundles of one run: forms of one model, or a refusal that says which is not and why."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import AXES, CONFIG, LAYOUT, RUN, Cloud, a_hello, make_width

from sedge_cloud.admin.bundles import require_forms
from sedge_cloud.admin.runs import start_run
from sedge_cloud.runs.capabilities import memory_of, terms_of
from sedge_cloud.runs.run import Run
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.frozen import FrozenData, frozen_blob, frozen_data
from sedge_protocol.wire.messages import Refusal
from sedge_protocol.wire.objective import Guide
from sedge_protocol.wire.work import Work


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> list[BundleManifest]:
    """The whole model, three quarters, half and a quarter of it."""
    folder = tmp_path_factory.mktemp("forms")
    found = [make_width(folder / str(dropped), dropped) for dropped in (0.0, 0.25, 0.5, 0.75)]
    return [bundles.load(one)[0].manifest for one in found]


def changed(**fields: object) -> Callable[[BundleManifest], BundleManifest]:
    return lambda manifest: msgspec.structs.replace(manifest, **fields)


NAMES = Layout.of([("body", (100, 60), Role.PARAMETER), ("head.bias", (100,), Role.PARAMETER)])
SHAPES = Layout.of(
    [("body.weight", (100, 61), Role.PARAMETER), ("head.bias", (100,), Role.PARAMETER)]
)
ROLES = Layout.of(
    [("body.weight", (100, 60), Role.PARAMETER), ("head.bias", (100,), Role.STATISTIC)]
)
VALUES = np.arange(6, dtype=np.float32)
HELD = frozen_data(Layout.of([("base", (2, 3), Role.PARAMETER)]), VALUES)
PROGRAM = bundles.Program("gradient", "executorch", "train.pte", "")
WRONG: dict[str, tuple[Callable[[BundleManifest], BundleManifest], str]] = {
    "input": (changed(input=bundles.TensorSpec("float32", (3,))), 'bundle 2: found "input'),
    "target": (changed(target=bundles.TensorSpec("float32", ())), 'bundle 2: found "target'),
    "classes": (changed(num_classes=9), "bundle 2: found 'num_classes 9', expected 100"),
    "backend": (changed(programs=(PROGRAM,)), r"expected programs for \['onnxruntime'\]"),
    "dropped": (changed(dropped=0.0), "found 'dropped 0', expected above 0"),
    "another dropped": (changed(dropped=0.25), r"found 'channels \(60,\)', expected \(90,\)"),
    "axes": (changed(axes=None), "found 'no axes', expected bundles that were exported with"),
    "channels": (changed(axes=Axes((59,), AXES.dims)), r"found 'channels \(59,\)', expected \(60"),
    "dims": (changed(axes=Axes((60,), ((0, FIXED), (0,)))), "along the first one's axes"),
    "names": (changed(layout=NAMES), "found 'different tensors'"),
    "shapes": (changed(layout=SHAPES), "found 'different tensors'"),
    "roles": (changed(layout=ROLES), "found 'different tensors'"),
    "frozen": (changed(frozen=HELD), "found 'different frozen data', expected the same frozen"),
    "fewer": (changed(layout=Layout(LAYOUT.tensors[:1])), "found 'different tensors'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_form_of_the_model(forms: list[BundleManifest], name: str) -> None:
    change, text = WRONG[name]
    with pytest.raises(ConfigError, match=text):
        require_forms(forms[0], [change(forms[2])])


def test_the_order_of_the_bundles(forms: list[BundleManifest]) -> None:
    with pytest.raises(ConfigError, match=r"bundle 3: found 'dropped 0\.25', expected above"):
        require_forms(forms[0], [forms[2], forms[1]])
    with pytest.raises(ConfigError, match=r"bundle 3: found 'dropped 0\.5'"):
        require_forms(forms[0], [forms[2], forms[2]])
    with pytest.raises(ConfigError, match="the whole model first"):
        require_forms(forms[1], [forms[2]])


def test_a_run_keeps_its_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.runs.garbage.ORPHAN_AGE_S", -60.0)
    cloud = Cloud(tmp_path, CONFIG, widths=(0.25, 0.5))
    for _ in range(2):
        run = cloud.core.runs[RUN]
        assert [width.dropped for width in run.widths] == [0.0, 0.25, 0.5]
        assert run.layout(2) == AXES.layout(LAYOUT, AXES.narrowed(0.5))
        cloud.core.garbage.collect()
        assert all(cloud.store.blobs.has(bundle.sha256) for bundle in run.bundles)
        cloud.restart()


def test_a_run_keeps_its_frozen_data_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.runs.garbage.ORPHAN_AGE_S", -60.0)
    cloud = Cloud(tmp_path, CONFIG)
    folder = make_width(tmp_path / "with", 0.0)
    bundle, init = bundles.load(folder)
    manifest = msgspec.structs.replace(bundle.manifest, frozen=HELD)
    bundles.save(folder, bundles.Bundle(manifest, bundle.files, VALUES), init)
    start_run(cloud.store, "tuned", folder, CONFIG)
    cloud.core.garbage.collect()
    assert cloud.store.blobs.read(HELD.blob.sha256) == frozen_blob(VALUES)
    run = Run(next(row for row in cloud.store.runs() if row.run == "tuned"), cloud.store)
    assert run.manifest.frozen == HELD
    missing = terms_of(run).missing
    able, unable = a_hello(codecs=("frozen",)), a_hello()
    assert missing(able) == []
    assert missing(unable) == ["frozen"]
    little = msgspec.structs.replace(able, memory_mb=1)
    assert missing(little) == []
    layout = Layout.of([("base", (1_500_000,), Role.PARAMETER)])
    run.manifest = msgspec.structs.replace(manifest, frozen=FrozenData(layout, HELD.blob))
    assert terms_of(run).missing(little) == ["memory for 6 MB of frozen data"]


def costing(folder: Path, memory_mb: int) -> Path:
    """A bundle, now with programs with which a device needs so much memory, and 1 MB more if guided."""
    bundle, init = bundles.load(folder)
    program = bundle.manifest.programs[0]
    vectors = 4 * bundle.manifest.layout.size * Work().vectors(CONFIG.training)
    needed = memory_mb * 10**6 - bundles.AGENT_BYTES[program.backend] - vectors
    program = msgspec.structs.replace(program, memory_bytes=needed)
    guided = msgspec.structs.replace(program, name="guided", memory_bytes=needed + 10**6)
    guide, programs = Guide("fedlc", constants=1), (program, guided)
    manifest = msgspec.structs.replace(bundle.manifest, programs=programs, guide=guide)
    bundles.save(folder, bundles.Bundle(manifest, bundle.files), init)
    return folder


def test_a_guided_job_takes_the_memory_of_its_own_program(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None)
    start_run(cloud.store, RUN, costing(make_width(tmp_path / "whole", 0.0), 400), CONFIG)
    cloud.restart()
    run = cloud.core.runs[RUN]
    vector = -(-4 * LAYOUT.size // 10**6)
    assert memory_of(run, 0) == {"onnxruntime": 400}
    assert memory_of(run, 0, Work(loss="fedlc")) == {"onnxruntime": 401 + vector}


class OwnWidths(HeteroFL, frozen=True):
    """A strategy of the user's own that narrows the model."""


@pytest.mark.parametrize(
    ("strategy", "widths"),
    [
        ("heterofl", {0: 0, 400: 0, 399: 1, 200: 1, 199: None}),
        (f"{__name__}:OwnWidths", {0: 0, 400: 0, 399: 1, 200: 1, 199: None}),
        ("fedavg", {0: 0, 400: 0, 399: None}),
    ],
)
def test_a_device_gets_what_fits_into_its_memory(
    tmp_path: Path, strategy: str, widths: dict[int, int | None]
) -> None:
    names = tuple(f"pi-{number}" for number in range(len(widths)))
    config = msgspec.structs.replace(CONFIG, strategy=strategy, min_train_devices=1)
    whole = costing(make_width(tmp_path / "whole", 0.0), 400)
    narrow = costing(make_width(tmp_path / "narrow", 0.5), 200)
    cloud = Cloud(tmp_path, None, names)
    start_run(cloud.store, RUN, whole, config, [narrow])
    cloud.restart()
    run = cloud.core.runs[RUN]
    for name, memory_mb in zip(names, widths, strict=True):
        cloud.say(name, a_hello(name, memory_mb=memory_mb))
    cloud.poll()
    for name, (memory_mb, width) in zip(names, widths.items(), strict=True):
        if width is not None:
            assert cloud.order(name).bundle == run.bundles[width]
            continue
        (refusal,) = cloud.messages(name, Refusal)
        least = 400 if strategy == "fedavg" else 200
        what = f"memory for a job: {least} MB, but it has {memory_mb}"
        text = f"run {RUN} has no work for {name}: it lacks {what}"
        assert refusal == Refusal("unable", text)
        hello = a_hello(name, memory_mb=memory_mb)
        assert terms_of(run).missing(hello) == [what]
