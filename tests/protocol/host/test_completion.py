"""What each shell offers at the cursor, asked of the shells that are installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sedge_cloud.__main__ import main

# The shells complete as they do for a person; bash and zsh have no way to ask for it but their functions.
ASK = {
    "bash": 'source {file}; COMP_WORDS=({words} "{last}"); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); '
    '_sedge_cloud; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "zsh": "compdef() {{ }}; _files() {{ }}; compadd() {{ shift; print -l -- $@ }}; source {file}; "
    'words=({words} "{last}"); CURRENT=$#words; _sedge_cloud',
    "fish": 'source {file}; complete -C "{words} {last}"',
}


def offered(shell: str, file: Path, words: str, last: str) -> list[str]:
    if shutil.which(shell) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{shell} is not installed")
    text = ASK[shell].format(file=file, words=words, last=last)
    done = subprocess.run([shell, "-c", text], capture_output=True, text=True, check=True)
    return [word for word in done.stdout.split() if word.startswith(last)]


@pytest.mark.parametrize("shell", ASK)
def test_commands_choices_and_options_are_offered(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--completion", shell])
    assert ended.value.code == 0
    file = tmp_path / "completion"
    file.write_text(capsys.readouterr().out)
    assert "reference" in offered(shell, file, "sedge-cloud", "r")
    assert offered(shell, file, "sedge-cloud -c x run", "st") == ["start", "stop"]
    assert offered(shell, file, "sedge-cloud run start", "--b") == ["--bundle"]
    assert offered(shell, file, "sedge-cloud reference", "fedpu") == ["fedpurin"]
