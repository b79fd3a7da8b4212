"""Writes Refusals.java: one method for each refusal message, with its placeholders as parameters."""

import string
import textwrap

from tools.spec.java import MADE, WIDTH, camel, literal

from sedge_protocol.wire import refusals


def java() -> str:
    """Return the text of Refusals.java."""
    texts = {name: text for name, text in vars(refusals).items() if name.isupper()}
    methods = "\n".join(_method(camel(name.lower()), text) for name, text in texts.items())
    return f"""{MADE}package org.sedge.edge.wire;

/** A device's messages about refused orders, as in Python. */
public final class Refusals {{
    private Refusals() {{}}

{textwrap.indent(methods, "    ")}}}
"""


def _method(name: str, text: str) -> str:
    """Return the Java method for one message. Its parameters are the message's placeholders, in order."""
    names: list[str] = []
    parts: list[str] = []
    for words, parameter, _, _ in string.Formatter().parse(text):
        parts += [literal(words)] if words else []
        if parameter is not None:
            names.append(f"Object {parameter}")
            parts.append(parameter)
    made = " + ".join(parts)
    if len(made) + 16 > WIDTH:
        made = "\n            + ".join(parts)
    return f"public static String {name}({', '.join(names)}) {{\n    return {made};\n}}\n"
