"""The APK as Debian's packages build it: what a phone reads of it before it runs a line.

Nothing here runs on Android. ``make android`` installs what it needs; the dexer and the framework's
classes are downloaded once.
"""

import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from android import build
from sedge_protocol import VERSION

pytestmark = pytest.mark.android

ROOT = Path(__file__).parents[2]
ANDROID = "{http://schemas.android.com/apk/res/android}"
MAX_BYTES = 6_000_000  # of the APK without a runtime
OURS = ("Lorg/sedge/", "Lcom/example/")
RUNTIMES = ("Lorg/pytorch/executorch/", "Lai/onnxruntime/")
UNLOADED = "Lorg/jspecify/annotations/"  # annotations for compilers, which no phone loads
# Missing in the framework jar of API 23, and there in API 26, the oldest that the APK runs on; the exit
# infos in API 30, before which nothing asks for them. What the dexer writes for annotations is no class.
SINCE_23 = re.compile(
    r"Ldalvik/annotation/\w+;|Landroid/app/(ApplicationExitInfo|NotificationChannel);|Ljava/nio/file/(attribute/)?[A-Z]\w*;"
    r"|Ljava/time/((format|temporal)/)?[A-Z]\w*;"
    r"|Ljava/util/(Base64(\$(De|En)coder)?|Optional|function/\w+|stream/\w+);"
)


class Built(NamedTuple):
    """What the script has made, and where it has put it."""

    core: Path
    library: Path
    apk: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Everything from scratch but the downloads."""
    if lacking := build.missing(build.TOOLS):
        pytest.skip(f"needs packages: {lacking}")
    out = tmp_path_factory.mktemp("android")
    core = build.core_jar(out)
    library = build.library_jar(core, out)
    return Built(core, library, build.apk(core, library, [], out))


def said_by(*words: str | Path) -> str:
    return subprocess.run(
        [str(word) for word in words], check=True, capture_output=True, text=True
    ).stdout


class Dex(NamedTuple):
    """The types of a classes.dex: those it defines, and all that it names."""

    defined: set[str]
    named: set[str]


def dex_of(apk: Path) -> Dex:
    """The tables of a .dex file (source.android.com, "Dalvik executable format")."""
    with zipfile.ZipFile(apk) as archive:
        data = archive.read("classes.dex")

    def table(at: int) -> tuple[int, int]:
        size, offset = struct.unpack_from("<II", data, at)
        return size, offset

    _, strings = table(0x38)
    types, type_at = table(0x40)
    classes, class_at = table(0x60)

    def type_name(index: int) -> str:
        (string,) = struct.unpack_from("<I", data, type_at + 4 * index)
        (at,) = struct.unpack_from("<I", data, strings + 4 * string)
        while data[at] & 0x80:  # the length, as a LEB128 number
            at += 1
        return data[at + 1 : data.index(0, at + 1)].decode()

    indices: Iterator[int] = (
        struct.unpack_from("<I", data, class_at + 32 * i)[0] for i in range(classes)
    )
    return Dex(set(map(type_name, indices)), set(map(type_name, range(types))))


def test_a_phone_learns_what_it_must_know(built: Built) -> None:
    badging = said_by("aapt", "dump", "badging", built.apk)
    assert f"package: name='org.sedge.app' versionCode='1' versionName='{VERSION}'" in badging
    assert "sdkVersion:'26'" in badging
    gradle = (build.HERE / "app" / "build.gradle").read_text()
    for said in (f"targetSdkVersion:'{build.TARGET_SDK}'", f"compileSdk = {build.TARGET_SDK}"):
        assert said in badging + gradle
    assert f"targetSdk = {build.TARGET_SDK}" in gradle
    assert "launchable-activity: name='org.sedge.app.StatusActivity'" in badging
    assert set(re.findall(r"uses-permission: name='android.permission.(\w+)'", badging)) == {
        "INTERNET", "ACCESS_NETWORK_STATE", "RECEIVE_BOOT_COMPLETED", "FOREGROUND_SERVICE",
        "FOREGROUND_SERVICE_DATA_SYNC", "POST_NOTIFICATIONS",
    }  # fmt: skip
    tree = said_by("aapt", "dump", "xmltree", built.apk, "AndroidManifest.xml")
    service = tree[tree.index("E: service") :]
    assert "org.sedge.app.FileTraining" in service
    assert "android.permission.BIND_JOB_SERVICE" in service
    assert re.search(r'scheme\(0x\w+\)="sedge"', tree)
    assert re.search(r"allowBackup\(0x\w+\)=\(type 0x12\)0x0", tree)


@pytest.mark.parametrize("which", ["app", "example"])
def test_who_trains_has_a_process_of_its_own(which: str, tmp_path: Path) -> None:
    """Native code crashes with its process: that must not be the app's."""
    path = ROOT / "examples/android/AndroidManifest.xml"
    if which == "app":
        path = build.manifest(tmp_path)
    service, *_ = ElementTree.parse(path).getroot().iter("service")
    assert service.get(f"{ANDROID}permission") == "android.permission.BIND_JOB_SERVICE"
    assert service.get(f"{ANDROID}process") == ":sedge"


def test_the_library_brings_a_process_for_trials(tmp_path: Path) -> None:
    """Neither the app's nor the training's, and for nobody else."""
    application = ElementTree.parse(build.manifest(tmp_path)).getroot().find("application")
    assert application is not None
    (trial,) = (
        service
        for service in application.iter("service")
        if service.get(f"{ANDROID}name") == "org.sedge.android.TrialService"
    )
    assert trial.get(f"{ANDROID}process") == ":sedgetrial"
    assert trial.get(f"{ANDROID}exported") == "false"


def test_a_phone_accepts_the_signature_and_the_layout(built: Built) -> None:
    verified = said_by("apksigner", "verify", "--verbose", "--min-sdk-version", "26", built.apk)
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in verified
    assert "Verified using v3 scheme (APK Signature Scheme v3): true" in verified
    said_by("zipalign", "-c", "-p", "4", built.apk)
    with zipfile.ZipFile(built.apk) as archive:  # from API 30 on
        assert archive.getinfo("resources.arsc").compress_type == zipfile.ZIP_STORED


def test_the_dex_has_our_classes_and_no_stub(built: Built) -> None:
    dex = dex_of(built.apk)
    needed = {"app/FileTraining", "app/StatusActivity", "edge/Agent"}
    needed |= {"android/TrainingService", "android/TrialService"}
    assert {f"Lorg/sedge/{name};" for name in needed} <= dex.defined
    assert all(name.startswith(OURS) for name in dex.defined)


def test_android_has_every_class_that_the_dex_names(built: Built) -> None:
    """In the framework of API 23, or known to have come until 26; or in an AAR."""
    dex = dex_of(built.apk)
    with zipfile.ZipFile(build.framework().classes) as jar:
        framework = {f"L{n.removesuffix('.class')};" for n in jar.namelist()}
    classes = {name.lstrip("[") for name in dex.named}
    foreign = {name for name in classes if name.startswith("L")} - dex.defined
    unknown = {name for name in foreign - framework if not name.startswith((*RUNTIMES, UNLOADED))}
    assert {name for name in unknown if not SINCE_23.fullmatch(name)} == set()


def test_the_apk_is_small(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    size = built.apk.stat().st_size
    with capsys.disabled():
        print(f"\n  APK without a runtime: {size / 1e3:.1f} kB", end="")
    assert size <= MAX_BYTES


def classes_of(source: Path, folder: Path) -> Path:
    """A Java file's classes as a jar."""
    return build.jar(build.compile_java([source], [], folder), folder.with_suffix(".jar"))


def test_a_lambda_in_an_aar_is_refused(built: Built, tmp_path: Path) -> None:
    """No phone could run it, and this dexer makes no class of it."""
    source = tmp_path / "Task.java"
    source.write_text("public class Task { Runnable task() { return () -> {}; } }")
    given = classes_of(source, tmp_path / "given")
    with pytest.raises(SystemExit, match=r"Task\.task:.*invokedynamic"):
        build.apk(built.core, built.library, [given], tmp_path)


def test_an_aar_goes_into_the_apk(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "Module.java"
    source.write_text("package org.pytorch.executorch; public class Module {}")
    jar = classes_of(source, tmp_path / "classes")
    aar = tmp_path / "executorch.aar"
    with zipfile.ZipFile(aar, "w") as archive:
        archive.write(jar, "classes.jar")
        for abi in ("arm64-v8a", "x86_64"):
            archive.writestr(f"jni/{abi}/libexecutorch.so", abi)
    apk = build.apk(built.core, built.library, [aar], tmp_path)
    assert "Lorg/pytorch/executorch/Module;" in dex_of(apk).defined
    with zipfile.ZipFile(apk) as archive:
        libraries = [name for name in archive.namelist() if name.startswith("lib/")]
        assert libraries == ["lib/arm64-v8a/libexecutorch.so"]
        assert archive.read(libraries[0]) == b"arm64-v8a"


def test_the_example_embeds_the_library_in_fifty_lines(built: Built, tmp_path: Path) -> None:
    source = ROOT / "examples" / "android" / "WalkTraining.java"
    build.compile_java([source], [build.framework().classes, built.core, built.library], tmp_path)
    assert (tmp_path / "com/example/walks/WalkTraining.class").exists()
    assert len(source.read_text().splitlines()) < 50
    manifest = (source.parent / "AndroidManifest.xml").read_text()
    assert 'android:name="com.example.walks.WalkTraining"' in manifest


def test_missing_packages_are_named(tmp_path: Path) -> None:
    script = [sys.executable, str(build.HERE / "build.py")]
    environment = {"PATH": str(tmp_path)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    expected = "these packages are missing: apt-get install openjdk-17-jdk-headless aapt zipalign"
    assert expected in done.stderr
