"""The demo's fleet under three seeds and more strategies: what the demo's table would be worth in a paper.

    python -m tools.bench.headline [--seeds 42 43 44] [--out FOLDER]

Runs headline.toml once for each seed; a seed that has ended is not run again. The last line is JSON: mean
and sample standard deviation over the seeds of every figure of ``sedge-emulate compare``, for each strategy
and for the first one minus each other one, seed by seed. Accuracies are in [0, 1].
"""

import argparse
import sys
from pathlib import Path

import msgspec

from sedge_emulate.__main__ import main as emulate
from sedge_emulate.compare import compared

FLEET = Path(__file__).with_name("headline.toml")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--out", type=Path, default=Path("runs/headline"))
    given = parser.parse_args()
    for seed in given.seeds:
        folder = given.out / f"seed-{seed}"
        if (folder / "result.json").exists():
            continue
        resume = ["--resume"] if folder.exists() else []
        words = ["run", str(FLEET), "--seed", str(seed), "--out", str(folder), *resume]
        if status := emulate(words):
            sys.exit(status)
    print(msgspec.json.encode(compared([given.out])).decode())


if __name__ == "__main__":
    main()
