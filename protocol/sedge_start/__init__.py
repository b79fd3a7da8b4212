"""Entry points of the five commands. On Ctrl-C during the slow imports, they print one line and exit."""

import sys
from functools import partial
from importlib import import_module


def _start(command: str, module: str) -> int:
    """Import a command, which may take seconds, and run it. Returns its exit status."""
    try:
        main = import_module(module).main
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        return 130
    return int(main())


cloud = partial(_start, "sedge-cloud", "sedge_cloud.__main__")
edge = partial(_start, "sedge-edge", "sedge_edge.__main__")
emulate = partial(_start, "sedge-emulate", "sedge_emulate.__main__")
export = partial(_start, "sedge-export", "sedge_export.__main__")
conformance = partial(_start, "sedge-conformance", "sedge_conformance.__main__")
