"""Models from public packages, built as the packages' users would build them, small enough for devices.

The packages are imported when a model is built; ``tools.bench.models`` installs them into a separate
environment. Weights are random, because they do not affect whether a model can be exported.
"""

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.adapters import ADAPTERS
from tools.bench.zoo.published.pixels import PIXELS
from tools.bench.zoo.published.signals import SIGNALS
from tools.bench.zoo.published.tabular import TABULAR
from tools.bench.zoo.published.text import TEXT
from tools.bench.zoo.published.vision import VISION

# The packages to install for these models, except torch, which the project itself requires.
PACKAGES = (
    "torchvision==0.28.0", "timm==1.0.31", "transformers==5.24.0", "peft==0.21.2", "vit-pytorch==1.26.11",
    "x-transformers==2.31.10", "linformer==0.2.3", "conformer==0.3.2", "pytorch-tcn==1.2.3",
    "pytorch-tabnet==4.1.0", "rtdl_revisiting_models==0.0.2", "rtdl_num_embeddings==0.0.12",
    "tab-transformer-pytorch==0.6.1", "segmentation-models-pytorch==0.6.0",
)  # fmt: skip
PUBLISHED: dict[str, Case] = VISION | TEXT | SIGNALS | TABULAR | PIXELS | ADAPTERS
