"""Builds the Android client: jars, a signed APK, and the JNI library for JVMs. Needs only Debian packages.

    python edge/android/build.py [--out dist/android] [--aar FILE ...] [--jni FOLDER]

javac, aapt, zipalign and apksigner come from the installed Debian. Only Debian 11 has the dexer and the
framework's classes. They are downloaded from this machine's own Debian mirror, with a separate apt list,
and kept in runs/android together with the debug key. Without --aar the app has no runtime for models. Each
--aar (those of ExecuTorch and ONNX Runtime and their dependencies, or plain jars) adds its classes and its
native libraries for phones.

Android has no LambdaMetafactory to create lambdas, and this dexer does not turn them into classes as D8
does. So our own sources have no lambdas, and the dexer rejects those in an AAR.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sedge_protocol import VERSION

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = ROOT / "runs" / "android"
PACKAGE = "org.sedge.app"
MIN_SDK, TARGET_SDK = 26, 36
# With API 26 or higher the dexer would accept lambdas, which then fail on every phone.
DEX_SDK = MIN_SDK - 1
ABIS = ("arm64-v8a",)
# Each tool that the build needs, and the Debian package that provides it.
TOOLS = {
    "javac": "openjdk-17-jdk-headless",
    "aapt": "aapt",
    "zipalign": "zipalign",
    "apksigner": "apksigner",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
JNI_TOOLS = {"javac": "openjdk-17-jdk-headless", "g++": "g++"}
OLD_DEBIAN = "bullseye"
OLD_PACKAGES = ("dalvik-exchange", "libandroid-23-java")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Android's classes that we use in a newer form than Debian's framework (API 23) has.
NEWER = {
    "ActivityManager", "ApplicationExitInfo", "Notification", "NotificationChannel",
    "NotificationManager",
}  # fmt: skip
JNI_LIBRARY = "libsedge_executorch_jni.so"
_ANDROID = "{http://schemas.android.com/apk/res/android}"


class Framework(NamedTuple):
    """The dexer and the Android framework's classes, both from Debian 11."""

    dexer: Path
    classes: Path


def missing(tools: Mapping[str, str]) -> str:
    """Return the command that installs the missing tools, or "" if none is missing.

    ``tools`` maps each program to its Debian package.
    """
    lacking = [package for tool, package in tools.items() if not shutil.which(tool)]
    return f"apt-get install {' '.join(lacking)}" if lacking else ""


def _run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{words[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def mirror() -> str:
    """Return the address of the Debian archive from this machine's apt sources."""
    words = ("--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages")
    for line in _run("apt-get", "indextargets", *words).splitlines():
        origin, codename, address = line.split(maxsplit=2)
        if origin == "Debian" and "security" not in codename:
            return address
    sys.exit("apt: no Debian archive found in the sources; run apt-get update first")


def framework() -> Framework:
    """Download and verify Debian 11's dexer and framework classes, unless that was done before."""
    folder = KEPT / OLD_DEBIAN
    if not folder.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as temporary:
            _unpack_old_packages(Path(temporary))
            (Path(temporary) / "unpacked").rename(folder)
    java = folder / "usr" / "share" / "java"
    (dexer,) = java.glob("com.android.dx-*.jar")
    return Framework(dexer, java / "com.android.android-23.jar")


def _unpack_old_packages(folder: Path) -> None:
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {OLD_DEBIAN} main\n")
    for name in ("lists", "cache/archives"):
        (folder / name / "partial").mkdir(parents=True)
    apt = ["apt-get", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-"]
    apt += ["-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
    # apt's default download user has no write access to this folder.
    apt += ["-o", f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}", "-qq"]
    _run(*apt, "update")
    words = " ".join(["cd", str(folder), "&&", *apt, "download", *OLD_PACKAGES])
    _run("sh", "-c", words)
    for package in folder.glob("*.deb"):
        _run("dpkg-deb", "-x", package, folder / "unpacked")


def sources(module: str) -> list[Path]:
    """Return all Java source files of a module."""
    return sorted((HERE / module / "src" / "main" / "java").rglob("*.java"))


def compile_java(files: Sequence[Path], path: Iterable[Path], out: Path) -> Path:
    """Compile for Java 8, with warnings as errors. ``path`` lists folders and jars to compile against."""
    words = ["-encoding", "UTF-8", "--release", "8", "-Xlint:all,-options", "-Werror", "-g"]
    words += ["-cp", ":".join(map(str, path)), "-d", str(out)]
    _run("javac", *words, *files)
    return out


def jar(folder: Path, out: Path) -> Path:
    """Pack a folder's files into a jar. The same files always give the same bytes."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out


@lru_cache(maxsize=1)
def nullness() -> Path:
    """Compile JSpecify's annotations, which only the compiler needs. They are not part of the app."""
    return compile_java(sources("nullness"), [], KEPT / "nullness")


def core_jar(out: Path) -> Path:
    """Compile the core (the protocol and the rounds), which uses no Android classes. Returns its jar."""
    with tempfile.TemporaryDirectory() as temporary:
        classes = compile_java(sources("core"), [nullness()], Path(temporary))
        return jar(classes, out / "sedge-core.jar")


def stand_ins(core: Path, out: Path) -> Path:
    """Compile the tests' stand-ins for the AARs' classes and for those in ``NEWER``. Returns ``out``."""
    folder, jvm = HERE / "library/src/jvm/java", HERE / "jvm/src/main/java/org/sedge/executorch"
    files = [path for path in folder.rglob("*.java") if "sedge" not in path.parts]
    compile_java([*files, *jvm.glob("*.java")], [core, nullness()], out)
    for path in (out / "android").rglob("*.class"):
        if path.stem.partition("$")[0] not in NEWER:
            path.unlink()
    return out


def library_jar(core: Path, out: Path) -> Path:
    """Compile the Android library: jobs, their conditions, and the runtimes' backends. Returns its jar."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = [stand_ins(core, folder / "newer"), framework().classes, core, nullness()]
        classes = compile_java(sources("library"), path, folder / "classes")
        return jar(classes, out / "sedge-android.jar")


def manifest(folder: Path) -> Path:
    """Write the APK's manifest: the app's own, plus package name, versions and the library's entries."""
    ElementTree.register_namespace("android", _ANDROID[1:-1])
    app = ElementTree.parse(HERE / "app/src/main/AndroidManifest.xml")
    library = ElementTree.parse(HERE / "library/src/main/AndroidManifest.xml")
    root = app.getroot()
    root.set("package", PACKAGE)
    root.set(f"{_ANDROID}versionCode", "1")
    root.set(f"{_ANDROID}versionName", VERSION)
    # aapt rejects this attribute, which is newer than Debian's framework.
    for service in root.iter("service"):
        service.attrib.pop(f"{_ANDROID}foregroundServiceType", None)
    sdk = {"minSdkVersion": str(MIN_SDK), "targetSdkVersion": str(TARGET_SDK)}
    uses = ElementTree.Element(
        "uses-sdk", {f"{_ANDROID}{name}": value for name, value in sdk.items()}
    )
    entries = list(library.getroot())
    for services in library.getroot().iter("application"):
        entries.remove(services)
        next(root.iter("application")).extend(services)
    root[:0] = [uses, *entries]
    path = folder / "AndroidManifest.xml"
    app.write(path, encoding="utf-8", xml_declaration=True)
    return path


def unpack_aar(aar: Path, folder: Path) -> list[Path]:
    """Copy an AAR's native libraries to ``folder``/apk/lib and return its jars. A jar is returned as is."""
    if aar.suffix == ".jar":
        return [aar]
    jars: list[Path] = []
    with zipfile.ZipFile(aar) as archive:
        for name in archive.namelist():
            head, _, rest = name.partition("/")
            if head == "jni" and rest.partition("/")[0] in ABIS and name.endswith(".so"):
                target = folder / "apk" / "lib" / rest
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
            elif name == "classes.jar" or (head == "libs" and name.endswith(".jar")):
                jars.append(folder / f"{aar.stem}-{Path(name).name}")
                jars[-1].write_bytes(archive.read(name))
    return jars


def debug_key() -> Path:
    """Return the key that signs APKs.

    It is created once, because Android only updates apps with the same key.
    """
    path = KEPT / "debug.keystore"
    if not path.exists():
        words = ["-genkeypair", "-keystore", str(path), "-storepass", "android"]
        words += ["-alias", "debug"]
        words += ["-keyalg", "RSA", "-keysize", "2048", "-validity", "10000"]
        _run("keytool", *words, "-dname", "CN=Sedge debug")
    return path


def apk(core: Path, library: Path, aars: Sequence[Path], out: Path) -> Path:
    """Build the app, signed with the debug key. Returns the APK's path."""
    dexer, classes = framework()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "apk").mkdir()
        (folder / "generated").mkdir()
        resources = ["-M", str(manifest(folder)), "-S", str(HERE / "app/src/main/res")]
        resources += ["-I", str(classes)]
        _run("aapt", "package", "-f", "-m", "-J", folder / "generated", *resources)
        generated = sorted((folder / "generated").rglob("*.java"))
        path = [classes, core, library, nullness()]
        app = compile_java([*sources("app"), *generated], path, folder / "app")
        jars = [core, library, jar(app, folder / "app.jar")]
        jars += [found for aar in aars for found in unpack_aar(aar, folder)]
        dex = ["--dex", f"--min-sdk-version={DEX_SDK}", f"--output={folder / 'apk/classes.dex'}"]
        main = "com.android.dx.command.Main"
        _run("java", "-cp", dexer, main, *dex, *jars)
        unaligned = folder / "unaligned.apk"
        _run("aapt", "package", "-f", *resources, "-F", unaligned, folder / "apk")
        target = out / "sedge.apk"
        _run("zipalign", "-f", "-p", "4", unaligned, target)
    key = ["--ks", str(debug_key()), "--ks-pass", "pass:android"]
    _run("apksigner", "sign", *key, "--v4-signing-enabled", "false", target)
    return target


def jni(libraries: Path, out: Path) -> Path:
    """Build the JNI library in ``out``, next to copies of sedge-executorch's files from ``libraries``."""
    java = Path(shutil.which("javac") or "").resolve().parents[1] / "include"
    out.mkdir(parents=True, exist_ok=True)
    for path in libraries.glob("*.so"):
        shutil.copy(path, out)
    words = ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", "-s", "-fvisibility=hidden"]
    words += ["-Wall", "-Wextra", "-Werror", f"-I{java}", f"-I{java / 'linux'}"]
    source = HERE / "jvm/src/main/cpp/sedge_executorch_jni.cpp"
    link = [f"-L{out}", "-lsedge_executorch", f"-Wl,-rpath-link,{out}", "-Wl,-rpath,$ORIGIN"]
    _run(*words, source, "-o", out / JNI_LIBRARY, *link)
    return out / JNI_LIBRARY


def jvm_jar(core: Path, out: Path) -> Path:
    """Build the jar of the ExecuTorch backend for desktop JVMs, which needs the JNI library."""
    with tempfile.TemporaryDirectory() as temporary:
        return jar(
            compile_java(sources("jvm"), [core, nullness()], Path(temporary)),
            out / "sedge-executorch.jar",
        )


def main(arguments: list[str] | None = None) -> None:
    """Build everything and print the paths of the results."""
    parser = argparse.ArgumentParser(description="Builds the Android client.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "android")
    parser.add_argument("--aar", type=Path, action="append", default=[])
    parser.add_argument(
        "--jni",
        type=Path,
        help="folder with sedge-executorch's libraries, to build the backend for JVMs",
    )
    parsed = parser.parse_args(arguments)
    if lacking := missing(TOOLS if parsed.jni is None else {**TOOLS, **JNI_TOOLS}):
        parser.error(f"these packages are missing: {lacking}")
    out: Path = parsed.out
    out.mkdir(parents=True, exist_ok=True)
    core = core_jar(out)
    library = library_jar(core, out)
    made = [core, library, apk(core, library, parsed.aar, out)]
    if parsed.jni is not None:
        made += [jvm_jar(core, out), jni(parsed.jni, out)]
    for path in made:
        print(f"{path}  {path.stat().st_size / 1e3:.1f} kB")


if __name__ == "__main__":
    main()
