"""Optional packages."""

from __future__ import annotations

import importlib.util

from fedssl.errors import ConfigError


def installed(package: str) -> bool:
    """Whether a package can be imported; a leftover empty folder does not count."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # of a submodule whose parent is missing
        return False
    return spec is not None and spec.origin is not None


def require(package: str, extra: str, what: str) -> None:
    """Raise a ConfigError unless a package of an extra is installed.

    Args:
        package: the name it is imported by.
        extra: the extra of fedssl that installs it.
        what: what needs it, for the message, such as `privacy.mode=client`.
    """
    if not installed(package):
        raise ConfigError(f"{what} needs {package.split('.')[0]}: pip install 'fedssl[{extra}]'")
