"""Settings that must stand before numpy and torch are imported."""

import os

# One thread each: the suite must not depend on, or fight over, the number of processors.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
