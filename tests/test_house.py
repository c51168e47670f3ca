"""Dependencies point one way. The imports of every module are read, not run, and held against the plan of the house.

    cli, dialects -> api -> recipes, modifiers -> passes -> engines, targets, calibration -> graph | the mathematics
    -> errors, progress, version

Parts of one level may see each other, but for `graph` and the mathematics. `report` may be used by everything above
`graph`, and stands on the errors alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "onnxsparse"

MATHEMATICS = {
    "allocations", "math", "patterns", "plugins", "schedules", "scores", "solvers", "sparsers",
}  # fmt: skip
LEVELS: tuple[set[str], ...] = (
    {"errors", "moved", "progress", "version"},
    {"graph"} | MATHEMATICS,
    {"engines", "targets", "calibration", "checkpoints", "data", "losses", "metrics", "optimizers", "rates"},
    {"passes"},
    {"recipes", "modifiers", "epochs", "runs"},
    {"api", "finetuning", "leveling", "loops", "torch", "tuning"},
    {"cli", "dialects", "graphsurgeon", "__main__", "__init__"},
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}
BESIDE = "report"  # below everything that is above the graph
MODULES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first[: -len(".py")] if first.endswith(".py") else first


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports, wherever in it, by statement or by `import_module`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, path)
        elif isinstance(node, ast.Call) and _is_import_call(node.func):
            yield from _written(node)


def _from(node: ast.ImportFrom, path: Path) -> Iterator[str]:
    package = ("onnxsparse", *path.relative_to(PACKAGE).parts[:-1])
    start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
    base = ".".join(filter(None, (start, node.module)))
    yield from (f"{base}.{alias.name}" for alias in node.names) if base == "onnxsparse" else (base,)


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _written(call: ast.Call) -> Iterator[str]:
    """The name where it is written out; where it starts with one, that start."""
    first = call.args[0]
    if isinstance(first, ast.JoinedStr):
        first = first.values[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        yield first.value.rstrip(".")


def own(path: Path) -> set[str]:
    """Parts of ours that a module imports."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("onnxsparse.")}
    return {name if name in LEVEL or name == BESIDE else "__init__" for name in names}


def foreign(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - {"onnxsparse"}


def allowed(here: str, there: str) -> bool:
    if here == there or there == BESIDE:
        return here == there or LEVEL[here] > LEVEL["graph"]
    if here == BESIDE:
        return LEVEL[there] == 0
    if "graph" in (here, there) and (here in MATHEMATICS or there in MATHEMATICS):
        return False
    return LEVEL[there] <= LEVEL[here]


def title(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_every_part_has_a_place() -> None:
    """A new folder or module at the top has to say where it belongs, here and in docs/concepts.md."""
    assert {part_of(path) for path in MODULES} <= set(LEVEL) | {BESIDE}


@pytest.mark.parametrize("path", MODULES, ids=title)
def test_imports_point_down(path: Path) -> None:
    here = part_of(path)
    wrong = [there for there in own(path) if not allowed(here, there)]
    assert not wrong, f"{title(path)} may not import {', '.join(wrong)}"


@pytest.mark.parametrize("path", [p for p in MODULES if part_of(p) in MATHEMATICS], ids=title)
def test_the_mathematics_sees_numpy_only(path: Path) -> None:
    known = set(getattr(sys, "stdlib_module_names", ())) | {"typing_extensions", "numpy"}
    if len(known) == 2:  # Python 3.9 does not list its own modules
        assert not foreign(path) & {"onnx", "onnxruntime", "torch", "google", "scipy", "rich", "yaml"}
    else:
        assert foreign(path) <= known


def test_families_of_the_mathematics_stand_on_each_other_in_one_order() -> None:
    """`math`, then `scores`, then `patterns`, then what uses both: no family needs one that needs it."""
    needs: dict[str, set[str]] = {part: set() for part in MATHEMATICS}
    for path in MODULES:
        if part_of(path) in MATHEMATICS:
            needs[part_of(path)] |= (own(path) & MATHEMATICS) - {part_of(path)}
    while needs:
        free = {part for part, rest in needs.items() if not rest & set(needs)}
        assert free, f"a cycle among {', '.join(sorted(needs))}"
        needs = {part: rest for part, rest in needs.items() if part not in free}


def test_reports_and_errors_know_no_model_format() -> None:
    for path in MODULES:
        if part_of(path) in LEVELS[0] | {BESIDE}:
            assert not foreign(path) & {"onnx", "google", "torch", "onnxruntime"}, title(path)


def test_no_module_runs_what_a_file_holds() -> None:
    """No pickle, no eval: nothing from a file is ever executed."""
    for path in MODULES:
        assert not foreign(path) & {"pickle", "marshal", "shelve", "dill", "joblib"}, title(path)
        calls = [
            node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
        ]
        assert not {call.id for call in calls if isinstance(call, ast.Name)} & {"eval", "exec", "compile"}, title(path)


def test_no_module_is_called_by_what_it_is_not() -> None:
    words = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"}
    assert not {path.stem for path in MODULES} & words
    assert not {path.parent.name for path in MODULES} & words


# -- the rules above catch what they are for


@pytest.mark.parametrize(
    ("here", "there", "right"),
    [
        ("graph", "patterns", False),
        ("patterns", "graph", False),
        ("patterns", "scores", True),
        ("passes", "cli", False),
        ("api", "cli", False),
        ("cli", "api", True),
        ("targets", "graph", True),
        ("targets", "plugins", True),
        ("targets", "passes", False),
        ("graph", "report", False),
        ("passes", "report", True),
        ("report", "graph", False),
        ("report", "version", True),
        ("errors", "graph", False),
    ],
)
def test_the_rule(here: str, there: str, right: bool) -> None:
    assert allowed(here, there) is right


def test_imports_are_found_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    path = tmp_path / "patterns" / "odd.py"
    path.parent.mkdir()
    path.write_text(
        "from onnxsparse import api, cli\nfrom .. import graph\nfrom ..passes.prune import Prune\nfrom . import nm\n"
        "def late():\n    import onnx.helper\n    import importlib\n    importlib.import_module('torch.fx')\n"
        "    importlib.import_module(f'onnxsparse.targets.{late}')\n"
    )
    assert own(path) == {"api", "cli", "graph", "passes", "patterns", "targets"}
    assert foreign(path) == {"onnx", "importlib", "torch", "__future__"} - {"__future__"}
