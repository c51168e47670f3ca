"""Modules that have moved can still be imported under the names that the documentation showed."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

from onnxsparse import moved


@pytest.mark.parametrize("old", sorted(moved.MOVED))
def test_an_old_name_gives_the_new_module(old: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(old.rpartition(".")[0])  # a package that has moved says so itself, the first time
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=moved.MOVED[old]):
        assert importlib.import_module(old) is importlib.import_module(moved.MOVED[old])
    assert importlib.import_module(old) is sys.modules[moved.MOVED[old]]  # and is said once


def test_below_an_old_package_nothing_is_loaded_twice() -> None:
    for name in ("onnxsparse.modifiers.modifier", "onnxsparse.modifiers.keep_best"):
        sys.modules.pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("onnxsparse.modifiers")  # says itself that it has moved, the first time
    with pytest.warns(DeprecationWarning, match=r"onnxsparse\.recipes\.modifiers\.modifier"):
        old = importlib.import_module("onnxsparse.modifiers.modifier")
    assert old is importlib.import_module("onnxsparse.recipes.modifiers.modifier")
    with pytest.raises(ModuleNotFoundError, match="keep_best"), pytest.warns(DeprecationWarning, match="keep_best"):
        importlib.import_module("onnxsparse.modifiers.keep_best")


def test_a_new_name_is_no_old_one() -> None:
    assert not set(moved.MOVED) & set(moved.MOVED.values())


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"onnxsparse\.never_was"):
        importlib.import_module("onnxsparse.never_was")


def test_the_warning_names_both_and_shows_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(moved.MOVED, "onnxsparse.once", "onnxsparse.errors")
    monkeypatch.delitem(sys.modules, "onnxsparse.once", raising=False)
    with pytest.warns(DeprecationWarning, match=r"onnxsparse\.once has become onnxsparse\.errors") as caught:
        from onnxsparse.once import OptionError  # type: ignore[import-not-found]
    assert OptionError is importlib.import_module("onnxsparse.errors").OptionError
    assert caught[0].filename == __file__
