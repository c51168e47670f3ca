"""Deprecated module names: importing one gives the module that replaces it, with a DeprecationWarning that names it.

A name is kept where the documentation showed it. Its parent has to be a package still, or to have become one. `ALSO`
has second names that stay, and say nothing.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

MOVED = {
    "onnxsparse.epochs": "onnxsparse.train",
    "onnxsparse.epochs.act": "onnxsparse.acts.old_names",
    "onnxsparse.epochs.host": "onnxsparse.acts.old_names",
    "onnxsparse.epochs.params": "onnxsparse.acts.params",
    "onnxsparse.modifiers": "onnxsparse.recipes.modifiers",
    "onnxsparse.modifiers.scheduled": "onnxsparse.recipes.modifiers.modifier",
    "onnxsparse.values": "onnxsparse.math.values",
}
"""Old module name -> new module name."""
ALSO = {"onnxsparse.create": "onnxsparse.dialects.create"}
"""Names that are as good as those of the modules: importing one says nothing."""


def _new_name(old: str) -> str:
    """What has become of a module; one below a package that has moved is the module of that name in the new one."""
    parent, _, leaf = old.rpartition(".")
    known = {**MOVED, **ALSO}
    return known.get(old) or (f"{known[parent]}.{leaf}" if parent in known else "")


class _Finder:
    """Stands before all other finders: where an old package has become another one they would find its modules again.

    It is a finder and a loader without their base classes: importing `importlib.abc` costs more than the package.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, cast(Any, self)) if _new_name(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary one, for the moment."""

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, _new_name(module.__name__)
        if old not in ALSO and old.rpartition(".")[0] not in ALSO:
            warnings.warn(f"{old} has become {new}", DeprecationWarning, stacklevel=2)
        # The import system hands out what stands here: the very same classes under both names.
        sys.modules[old] = importlib.import_module(new)


def keep_old_names() -> None:
    """Make the old names importable, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
