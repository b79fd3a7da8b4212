"""``make spec``: what the structs of the Python protocol say, for other languages and for readers.

structs    which structs, in what order
tables     their tables in protocol/WIRE.md and protocol/spec
java       the same structs as Java classes: Messages.java, and State.java and Kept.java
java_refusals
           what a device says of an order that it refuses: Refusals.java
onnx       what ONNX programs may have, as OnnxTables.java and tables of bundle.md
java_state what the Java agent keeps on disk

A field is described once: its type and limits by its annotation, its meaning by the sentence below it. The
vectors of the specification are another thing, made by tests/vectors/make_spec.py.
"""
