"""Lowering: ATen operators as ONNX nodes. ``walk.to_onnx`` is the way in, ``table.LOWERINGS`` the table."""
