"""Archives of data sets that a test writes."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sedge_emulate.data.archives import Archive


def packed(folder: Path, like: Archive, files: Mapping[str, bytes]) -> Archive:
    """An archive in ``folder`` of the same name with these files, and its own hash."""
    with tarfile.open(folder / like.file, "w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"{like.package}-{like.version}/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return replace(like, sha256=hashlib.sha256((folder / like.file).read_bytes()).hexdigest())
