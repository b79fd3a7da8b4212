"""``python -m tools.pack``: makes a pack that runs the GPU benchmark on a bare machine with torch.

    python -m tools.pack [--python 3.12] [--train-images 60000] [--max-mb 50] [--out dist/pack]

    source.tar.xz     the files that git tracks, as they are in the working tree
    packages.tar.xz   what the benchmark imports besides torch, at the versions of constraints.txt
    data.tar.xz       Fashion-MNIST
    run, unpack.py    scripts that unpack the archives and run the benchmark; ``run`` explains how
    content.json      a list of the pack's contents; SHA256SUMS has the checksums

The command on the other machine, which needs neither a registry nor pip: ``OUT=results dist/pack/run``.
"""

import argparse
import sys
from pathlib import Path

from tools.pack.packing import TRAIN_IMAGES, PackError, Wanted, pack, sizes
from tools.wheels import NoWheel

from sedge_protocol.errors import DataError

ROOT = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    """Make the pack and list its contents; on failure, print one line and return 2."""
    parser = argparse.ArgumentParser("tools.pack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--python", default="3.12", help="CPython version of the other machine")
    parser.add_argument(
        "--train-images", type=int, default=TRAIN_IMAGES, help="pack only the first N"
    )
    parser.add_argument(
        "--max-mb", type=float, default=50.0, help="largest size of the folder (MB = 10^6 bytes)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist/pack")
    words = parser.parse_args(argv)
    try:
        wanted = Wanted(ROOT, words.python, words.train_images, int(words.max_mb * 1e6))
        content = pack(wanted, words.out)
    except (PackError, NoWheel, DataError, OSError) as exc:
        print(f"pack: {exc}", file=sys.stderr)
        return 2
    for name, size in sizes(words.out):
        print(f"{size / 1e6:6.2f} MB  {name}")
    total = sum(size for _, size in sizes(words.out))
    print(f"{total / 1e6:6.2f} MB  {words.out}: CPython {content.python}, commit {content.commit}")
    print(*content.packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
