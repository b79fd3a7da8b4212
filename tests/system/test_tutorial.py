"""docs/tutorial.md, typed as it stands: each command gives the output that the page shows.

With ``SEDGE_PICTURES=docs`` it writes the page's screenshot into that folder.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cloud.outlets.browser import Browser
from tools.bench.parts.real_fleet import ENVIRONMENT, wait_until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
# Commands that go on until Ctrl-C, in a terminal of their own.
LASTING = ("sedge-cloud up", "sedge-edge -c device-1/edge.toml run")
# The page names the folder of its state, which is that of this machine.
WITHOUT_DISK = (
    "document.head.insertAdjacentHTML('beforeend', '<style>#disk { display: none }</style>')"
)
PROGRAMS = f"{Path(sys.executable).parent}{os.pathsep}{ENVIRONMENT['PATH']}"

pytestmark = pytest.mark.fleet


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Each file that the reader saves, by its name, and each command, after a dollar, with its output."""
    name = r"[Ss]ave this as\s`([\w.]+)`.*?^```\w+$\n(.*?)^```$"
    for found in re.finditer(rf"{name}|^```console$\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if found[1]:
            yield found[1], found[2]
            continue
        for command in found[3].split("$ ")[1:]:
            line, _, output = command.partition("\n")
            yield f"$ {line}", output


def shown(expected: str, output: str) -> bool:
    """Whether the lines are there in this order; an ellipsis stands for anything, spaces for any number."""
    lines = (re.escape(line).replace("…", ".*") for line in expected.splitlines() if line != "…")
    pattern = r"[\s\S]*?^".join(re.sub(r"(\\ )+", r"\\s+", line) + r".*$" for line in lines)
    return re.search(f"^{pattern}", output, re.MULTILINE) is not None


class Desk:
    """A folder, and the terminals that are open in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**ENVIRONMENT, "PATH": PROGRAMS}
        self.lasting: dict[str, subprocess.Popen[bytes]] = {}

    def said(self, command: str) -> str:
        return self.log(command).read_text()

    def log(self, command: str) -> Path:
        return self.folder / f"terminal-{LASTING.index(command)}.log"

    def type(self, command: str, expected: str) -> None:
        """Run a command of the page, and find its output."""
        if command not in LASTING:
            output = self.run(command)
            assert shown(expected, output), f"{command}:\n{output}\nexpected\n{expected}"
            return
        with self.log(command).open("w") as log:
            self.lasting[command] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(lambda: shown(expected, self.said(command)), 60, command)

    def run(self, command: str) -> str:
        pasted = ""
        if command == "sedge-edge join":
            [pasted] = re.findall(r"^sedge:\S+$", self.said("sedge-cloud up"), re.MULTILINE)
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, input=pasted,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}:\n{done.stdout}"
        return done.stdout

    def close(self) -> None:
        """Press Ctrl-C in every terminal, the newest first."""
        for process in reversed(self.lasting.values()):
            process.terminate()
            process.wait(30)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "first-fleet").mkdir()
    desk = Desk(tmp_path / "first-fleet")
    try:
        yield desk
    finally:
        desk.close()


def test_the_tutorial_as_it_stands(desk: Desk, tmp_path: Path) -> None:
    typed = 0
    for name, text in steps(PAGE):
        if name.startswith("$ "):
            desk.type(name[2:], text)
            typed += 1
        else:
            (desk.folder / name).write_text(text)
    assert typed == PAGE.count("\n$ ") > 10 and set(desk.lasting) == {*LASTING}
    page = re.search(r"http://127\.0\.0\.1:\d+", desk.said("sedge-cloud up"))
    assert page is not None
    pictures = Path(os.environ.get("SEDGE_PICTURES", tmp_path)).resolve()
    with Browser(tmp_path / "profile") as browser:
        browser.open(page[0], 1100)
        browser.until("document.body.innerText.includes('device-1')")
        assert "first" in browser.value("document.body.innerText")
        browser.value(WITHOUT_DISK)
        browser.picture(pictures / "tutorial-page.png")
    assert (pictures / "tutorial-page.png").read_bytes().startswith(b"\x89PNG")


def test_output_that_differs_is_not_the_page_s() -> None:
    assert shown("round   …\n…\n    6 evaluate", "round 1\nmore\n6 x\n    6   evaluate 0.9")
    assert not shown("round …\n    7 evaluate", "round 1\nmore\n    6   evaluate 0.9")
    assert not shown("b\na", "a\nb")
