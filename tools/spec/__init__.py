"""``make spec``: writes what the Python protocol's structs define, for other languages and for readers.

structs    which structs, in what order
tables     their tables in protocol/WIRE.md and protocol/spec
java       the same structs as Java classes: Messages.java, and State.java and Kept.java
java_refusals
           what a device says of an order that it refuses: Refusals.java
onnx       what ONNX programs may have, as OnnxTables.java and tables of bundle.md
java_state what the Java agent keeps on disk

A field is described once: its type and limits by its annotation, its meaning by the sentence below it. The
specification's test vectors are separate (tests/vectors/make_spec.py).
"""
