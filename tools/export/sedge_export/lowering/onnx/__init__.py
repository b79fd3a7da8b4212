"""Lowering to ONNX: ATen operators become ONNX nodes.

Start at ``to_onnx.to_onnx``; ``table.LOWERINGS`` is the table. The imports below fill it.
"""

from sedge_export.lowering.onnx import (
    convolution as convolution,
)
from sedge_export.lowering.onnx import (
    indexing as indexing,
)
from sedge_export.lowering.onnx import (
    loops as loops,
)
from sedge_export.lowering.onnx import (
    normalization as normalization,
)
from sedge_export.lowering.onnx import (
    pointwise as pointwise,
)
from sedge_export.lowering.onnx import (
    pooling as pooling,
)
from sedge_export.lowering.onnx import (
    products as products,
)
from sedge_export.lowering.onnx import (
    reductions as reductions,
)
from sedge_export.lowering.onnx import (
    rules as rules,
)
from sedge_export.lowering.onnx import (
    shapes as shapes,
)
