"""Why a test of the agent does not run on the core in Java: the reasons in docs/android.md."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "android.md"
REASONS = dict(re.findall(r"^\| `([a-z0-9 ]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
