"""``make spec``: generates documentation and Java code from the structs of the Python protocol.

structs    which structs, in what order
tables     their tables in protocol/WIRE.md and protocol/spec
java       the same structs as Java classes: Messages.java, and State.java and Kept.java
java_refusals
           the messages of a device that refuses an order: Refusals.java
onnx       what ONNX programs may contain: OnnxTables.java and tables of bundle.md
java_state what the Java agent keeps on disk

A field is described in one place: its annotation has the type and limits, and the string below it the
meaning. The specification's test vectors are made elsewhere (tests/vectors/make_spec.py).
"""
