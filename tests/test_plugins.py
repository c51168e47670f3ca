"""Plug-ins are found by name, and never by importing what a text says."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from onnxsparse import allocations, patterns, plugins, scores
from onnxsparse.errors import OptionError
from onnxsparse.scores import Score


@dataclass(frozen=True)
class Foreign(Score):
    """Comes from elsewhere."""

    name: ClassVar[str] = "foreign"
    power: float = 2.0
    signed: bool = False

    def value(self, values):
        return abs(values.real())


NotAPlugin = int


@pytest.fixture
def announce(monkeypatch):
    def set_entry_points(**values):
        entries = [importlib.metadata.EntryPoint(n, v, "onnxsparse.scores") for n, v in values.items()]
        monkeypatch.setattr(plugins, "_entry_points", lambda group: [e for e in entries if e.group == group])
        plugins.installed.cache_clear()

    yield set_entry_points
    plugins.installed.cache_clear()


def test_every_kind_lists_its_plugins_with_a_description():
    names = {entry.syntax for kind in (patterns, scores, allocations) for entry in kind.available()}
    assert names >= {"unstructured", "N:M", "block:RxC", "filter", "channel", "magnitude", "random", "uniform"}
    for kind in (patterns, scores, allocations):
        assert all(entry.description.endswith(".") for entry in kind.available())


def test_options_are_the_fields():
    entries = {entry.syntax: entry.options for entry in scores.available()}
    assert entries["random"] == (plugins.Option("seed", "int", "0"),)
    assert scores.parse("random:seed=7").seed == 7


@pytest.mark.parametrize(
    "text", ["random:seed", "random:seed=x", "random:tensor=a", "random:seed=1,seed=2", "random:seed=-1"]
)
def test_wrong_options_are_the_users_mistake(text):
    with pytest.raises(OptionError, match=r"seed|tensor"):
        scores.parse(text)


def test_an_unknown_word_names_the_nearest():
    with pytest.raises(OptionError, match="magnitude"):
        scores.parse("magnitud")
    with pytest.raises(OptionError, match=r"known: .*uniform"):
        allocations.parse("xyz")


def test_a_text_is_never_imported():
    before = set(sys.modules)
    for text in ("this", "antigravity", "os.path", "onnxsparse.errors", "score", "..errors"):
        with pytest.raises(OptionError):
            scores.parse(text)
    assert not {"this", "antigravity"} & (set(sys.modules) - before)


def test_an_installed_plugin_is_found(announce):
    announce(foreign=f"{__name__}:Foreign")
    sys.modules.setdefault(__name__, sys.modules.get(__name__) or _this_module())
    made = scores.parse("foreign:power=0.5,signed=true")
    assert (type(made).__name__, made.power, made.signed) == ("Foreign", 0.5, True)
    assert "foreign" in {entry.syntax for entry in scores.available()}


@pytest.mark.parametrize("target", ["no_such_module_anywhere:X", "builtins:int"])
def test_a_broken_installed_plugin_is_named(announce, target):
    announce(broken=target)
    with pytest.raises(OptionError, match="broken"):
        scores.parse("broken")
    assert scores.parse("magnitude").name == "magnitude"


def test_entry_points_of_this_python_can_be_read():
    assert list(plugins._entry_points("onnxsparse.no_such_kind")) == []


def _this_module():
    module = type(sys)(__name__)
    module.Foreign = Foreign
    return module


def test_an_option_that_nobody_has_to_choose() -> None:
    from onnxsparse.losses import KL

    option = next(one for one in plugins.options(KL) if one.name == "axis")
    assert (option.type, option.default) == ("int", "that of the classes")
    assert KL().text == "kl:temperature=2.0"
    assert KL.read("kl:axis=1") == KL(axis=1)
    assert KL.read(KL(axis=1).text) == KL(axis=1)
