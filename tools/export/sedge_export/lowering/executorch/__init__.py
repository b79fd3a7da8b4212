"""Lowers programs to ExecuTorch: applies rules written in torch, simplifies the graph, writes one file.

Start at ``to_executorch``. The imports below fill the table of rules.
"""

from sedge_export.lowering.executorch import convolution as convolution
from sedge_export.lowering.executorch import loops as loops
from sedge_export.lowering.executorch import normalization as normalization
from sedge_export.lowering.executorch import pointwise as pointwise
from sedge_export.lowering.executorch import products as products
from sedge_export.lowering.rules import pooling as pooling
from sedge_export.lowering.rules import sorting as sorting
from sedge_export.lowering.rules import strided as strided
from sedge_export.lowering.rules import weight_norm as weight_norm
