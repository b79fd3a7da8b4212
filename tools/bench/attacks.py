"""The accuracy that two hostile devices of ten cost, with the default [robust] and without any defence.

    python tools/bench/attacks.py [--seeds 45 46 47]

Runs examples/attacks.toml once for each seed: FedAvg on digits, split by Dir(0.5). The last line is JSON:
accuracies in [0, 1] before local training, means over all ten devices, one per seed. The defaults of
[robust] were chosen with other seeds, 42 to 44.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sedge_emulate.__main__ import main as emulate
from sedge_emulate.result import read_json

FLEET = Path(__file__).parents[2] / "examples" / "attacks.toml"
UNDEFENDED = ", no defence"


def measure(seeds: list[int]) -> dict[str, object]:
    """Run every strategy of the file with every seed."""
    accuracies: dict[str, list[float]] = {}
    for seed in seeds:
        with TemporaryDirectory() as out:
            if status := emulate(["run", str(FLEET), "--seed", str(seed), "--out", out]):
                sys.exit(status)
            for strategy in read_json(Path(out) / "result.json").strategies:
                accuracies.setdefault(strategy.name, []).append(strategy.before.mean)
    rows = [
        {"attack": name, "default": accuracies[name], "none": accuracies[name + UNDEFENDED]}
        for name in accuracies
        if not name.endswith(UNDEFENDED)
    ]
    return {"seeds": seeds, "rows": rows}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[45, 46, 47])
    print(json.dumps(measure(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
