"""Lowering to ExecuTorch: rules in tensors, a simplified graph, one file. Start at ``to_executorch``.

The imports below fill the table of rules.
"""

from sedge_export.executorch import convolution as convolution
from sedge_export.executorch import loops as loops
from sedge_export.executorch import normalization as normalization
from sedge_export.executorch import pointwise as pointwise
from sedge_export.executorch import pooling as pooling
from sedge_export.executorch import products as products
