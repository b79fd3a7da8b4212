"""Imports the user's code, named "module:function" in a configuration file or on the command line."""

import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sedge_protocol.errors import ConfigError


def unimportable(error: BaseException, name: str, folder: Path) -> str:
    """Explain why the function named "module:function" could not be used, for example what it lacks."""
    module, _, attribute = name.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name:
        if module == error.name or module.startswith(f"{error.name}."):
            return f"there is no module {error.name}: no {error.name}.py in {folder.absolute()}"
        return f"it imports {error.name}, which is not installed"
    if isinstance(error, AttributeError) and error.name == attribute:
        return f"{module} has no {attribute!r}"
    return f"{type(error).__name__}: {error}"


@contextmanager
def importable(folder: Path) -> Generator[None]:
    """Search ``folder`` first for imports inside this context."""
    place = str(folder.absolute())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


def imported(name: str, folder: Path, key: str) -> Callable[..., Any]:
    """Import the function named "module:function", searching ``folder`` first.

    Raises ``ConfigError``, which names ``key``, for whatever the import raises (including ``sys.exit``,
    which must not end the process), and for a name that is not callable.
    """
    module, _, attribute = name.partition(":")
    try:
        with importable(folder):
            found: object = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as exc:
        why = f"module:function that can be imported ({unimportable(exc, name, folder)})"
        raise ConfigError(key, name, why) from exc
    if not callable(found):
        raise ConfigError(key, name, f"a function, not a {type(found).__name__}")
    return cast(Callable[..., Any], found)
