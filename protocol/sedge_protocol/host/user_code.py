"""The user's own code, which a configuration file or a command line names "module:function"."""

import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sedge_protocol.errors import ConfigError


@contextmanager
def importable(folder: Path) -> Generator[None]:
    """Within, modules are looked for in ``folder`` first."""
    place = str(folder.absolute())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def imported(name: str, folder: Path, key: str) -> Callable[..., Any]:
    """The function that "module:function" names, looked for in ``folder`` first.

    Raises ``ConfigError`` about ``key`` for whatever importing raises (``sys.exit`` too, which must not
    end the process), and for a name that is not callable.
    """
    module, _, attribute = name.partition(":")
    try:
        with importable(folder):
            found: object = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as exc:
        why = f"module:function that can be imported ({type(exc).__name__}: {exc})"
        raise ConfigError(key, name, why) from exc
    if not callable(found):
        raise ConfigError(key, name, f"a function, not a {type(found).__name__}")
    return cast(Callable[..., Any], found)
