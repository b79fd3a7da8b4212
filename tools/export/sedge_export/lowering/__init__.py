"""Lowering: ATen operators as ONNX nodes. Start at ``to_onnx.to_onnx``; ``table.LOWERINGS`` is the table.

The imports below fill the table.
"""

from sedge_export.lowering import (
    convolution as convolution,
)
from sedge_export.lowering import (
    indexing as indexing,
)
from sedge_export.lowering import (
    loops as loops,
)
from sedge_export.lowering import (
    normalization as normalization,
)
from sedge_export.lowering import (
    pointwise as pointwise,
)
from sedge_export.lowering import (
    pooling as pooling,
)
from sedge_export.lowering import (
    products as products,
)
from sedge_export.lowering import (
    reductions as reductions,
)
from sedge_export.lowering import (
    shapes as shapes,
)
