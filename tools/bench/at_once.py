"""Many devices answer at one moment: the bytes that they send for each byte that they must.

    python -m tools.bench.at_once

Real cores and the updates of a real round (some 45 kB each), over a broker that is modelled: it keeps 200
messages and 2 MB for the coordinator, as Sedge's own Mosquitto does, and throws away what is beyond. With
and without the credit of the whole fleet (ingest/credit.py). The last line is JSON.
"""

import argparse
import json
import tempfile
from pathlib import Path
from unittest.mock import patch

from tests.cloud.ingest.test_credit import DEVICES, sent_over_needed

from sedge_cloud.ingest.credit import Credit


def main() -> None:
    """Print both ratios and a line of JSON."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with_credit = sent_over_needed(Path(folder) / "with")
        with patch.object(Credit, "ask", return_value=True):
            without = sent_over_needed(Path(folder) / "without")
    print(
        f"{DEVICES} devices at once: {with_credit:.2f} times the bytes; without credit {without:.2f}"
    )
    print(json.dumps({"bench": "at_once", "with_credit": with_credit, "without": without}))


if __name__ == "__main__":
    main()
