"""Dependencies point one way. The imports of every module are read, not run, and held against the plan of the house.

    cli, dialects -> api -> train -> recipes -> acts -> passes -> planning -> engines, targets, data, ...
    -> graph | the mathematics -> errors, files, options, progress, version

Parts of one level may see each other, but for `graph` and the mathematics. `report` may be used by everything above
`graph`, and stands on the errors alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "onnxsparse"

MATHEMATICS = {
    "allocations", "math", "patterns", "permutation_search", "plugins", "schedules", "scores", "solvers", "sparsers",
}  # fmt: skip
LEVELS: tuple[set[str], ...] = (
    {"errors", "files", "moved", "options", "progress", "version"},
    {"graph"} | MATHEMATICS,
    {
        "channel_classes",
        "engines",
        "targets",
        "checkpoints",
        "data",
        "losses",
        "metrics",
        "optimizers",
        "rates",
    },
    {"calibration", "planning"},
    {"passes"},
    {"acts"},
    {"recipes"},
    {"train"},
    {"api", "torch", "training_api"},
    {"cli", "dialects", "graphsurgeon", "__main__", "__init__"},
)
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}
BESIDE = "report"  # below everything that is above the graph
MODULES = sorted(PACKAGE.rglob("*.py"))

A_PAGE, AT_MOST = 80, 6
"""How long a module is that stands alone, and how many shorter ones there may be that serve one module beside them."""


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first[: -len(".py")] if first.endswith(".py") else first


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports, wherever in it, by statement or by `import_module`."""
    for node in nodes_of(path):
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
    folders = ("onnxsparse", "onnxsparse.engines")
    yield from (f"{base}.{alias.name}" for alias in node.names) if base in folders else (base,)


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
    return path.relative_to(PACKAGE.parent).as_posix()


def test_every_part_has_a_place() -> None:
    """A new folder or module at the top has to say where it belongs, here and in docs/architecture.md."""
    assert {part_of(path) for path in MODULES} <= set(LEVEL) | {BESIDE}


def test_imports_point_down() -> None:
    wrong = [
        f"{title(path)} may not import {there}"
        for path in MODULES
        for there in sorted(own(path))
        if not allowed(part_of(path), there)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_mathematics_sees_numpy_only() -> None:
    known = set(getattr(sys, "stdlib_module_names", ())) | {"typing_extensions", "numpy"}
    python_lists_its_modules = len(known) > 2  # 3.9 does not
    others = {"onnx", "onnxruntime", "torch", "google", "scipy", "rich", "yaml"}
    seen = {path: foreign(path) for path in MODULES if part_of(path) in MATHEMATICS}
    seen[PACKAGE / "permutation_search.py"] -= {"scipy", "numba"}  # of an extra, and imported by its functions
    odd = {path: names - known if python_lists_its_modules else names & others for path, names in seen.items()}
    wrong = [f"{title(path)} may not import {', '.join(sorted(names))}" for path, names in odd.items() if names]
    assert not wrong, "\n".join(wrong)


def test_neither_engine_imports_the_other() -> None:
    """What both need lies beside them in engines/, or in graph/."""
    for here, there in (("ort", "torch"), ("torch", "ort")):
        for path in (PACKAGE / "engines" / here).rglob("*.py"):
            wrong = [name for name in imports(path) if f"{name}.".startswith(f"onnxsparse.engines.{there}.")]
            assert not wrong, f"{title(path)} may not import {', '.join(wrong)}"


def test_bodies_are_walked_in_one_place() -> None:
    """Who wants the bodies of a node asks `graph.edit`: only it knows in which attributes they are."""
    walking = [path for path in MODULES if "AttributeProto.GRAPH" in path.read_text(encoding="utf-8")]
    assert [title(path) for path in walking] == ["onnxsparse/graph/edit.py"]


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
        known = {"joblib"} if title(path) == "onnxsparse/calibration/workers.py" else set()  # processes, and no files
        assert not foreign(path) & {"pickle", "marshal", "shelve", "dill", "joblib"} - known, title(path)
        calls = [node.func for node in nodes_of(path) if isinstance(node, ast.Call)]
        assert not {call.id for call in calls if isinstance(call, ast.Name)} & {"eval", "exec", "compile"}, title(path)


BY_ID = {
    "engines/torch/example.py": "the memo of Python's copy protocol is keyed by id()",
    "engines/torch/parametrization.py": "the memo of Python's copy protocol is keyed by id()",
    "engines/torch/permute/proof.py": "the memo of Python's copy protocol is keyed by id()",
    "train/module_trainee.py": "a GradScaler of torch keys its states of optimizers by id()",
}
"""Modules that call `id`, and why nothing else does there."""


def test_nothing_is_keyed_by_id() -> None:
    """The id of an object that is gone comes again; objects are keys themselves, protobuf messages as `IdentityKey`."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.Name) and node.id == "id"
    }
    assert found == set(BY_ID)


def test_no_module_is_called_by_what_it_is_not() -> None:
    words = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"}
    assert not {path.stem for path in MODULES} & words
    assert not {path.parent.name for path in MODULES} & words


# -- parts do not import each other


def rings(sees: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of names that reach each other."""
    reach = {name: {*there} for name, there in sees.items()}
    for middle in sees:
        for name in sees:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    found = [{one for one in sees if one in reach[name] and name in reach[one]} for name in sees]
    return [ring for at, ring in enumerate(found) if len(ring) > 1 and ring not in found[:at]]


def test_no_two_parts_import_each_other() -> None:
    """Not round three corners either, and not by a late import."""
    sees: dict[str, set[str]] = {}
    for path in MODULES:
        sees.setdefault(part_of(path), set()).update(own(path) - {part_of(path)})
    assert not [sorted(ring) for ring in rings(sees)]


def test_torch_does_without_the_other_engine() -> None:
    torch = [path for path in MODULES if title(path).startswith("onnxsparse/engines/torch/")]
    found = {title(path) for path in torch if any(one.startswith("onnxsparse.engines.ort") for one in imports(path))}
    assert not found


# -- a module is at least a page, and a room has its line


def clients() -> dict[Path, set[Path]]:
    """For each module, those that import it."""
    by_name = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    found: dict[Path, set[Path]] = {path: set() for path in MODULES}
    for path in MODULES:
        for node in nodes_of(path):
            names = list(_from(node, path)) if isinstance(node, ast.ImportFrom) else []
            names += [f"{name}.{alias.name}" for name in names for alias in node.names]  # type: ignore[attr-defined]
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                if by_name.get(name, path) != path:
                    found[by_name[name]].add(path)
    return found


def parts_of_their_client() -> dict[str, str]:
    """Modules shorter than a page that one other module of their folder imports, and nobody else."""
    return {
        title(path): title(*users)
        for path, users in clients().items()
        if path.stem != "__init__"
        and len(users) == 1
        and {one.parent for one in users} == {path.parent}
        and len(path.read_text(encoding="utf-8").splitlines()) < A_PAGE
    }


def test_a_module_is_a_page(golden: Callable[[str, str], None], repository: Path) -> None:
    """What is shorter and serves one module only is part of that one, or stands on the list with its reason."""
    table = repository / "tests" / "golden" / "short_modules.md"
    rows = [line.strip("| ").split(" | ") for line in table.read_text(encoding="utf-8").splitlines()[2:]]
    reasons = {name: reason for name, _, reason in rows}
    found = parts_of_their_client()
    lines = [f"| {name} | {client} | {reasons.get(name, '?')} |" for name, client in sorted(found.items())]
    golden(
        "short_modules.md", "\n".join(["| module | its client | why it stands alone |", "|---|---|---|", *lines, ""])
    )
    assert len(found) <= AT_MOST
    assert "?" not in {reasons.get(name, "?") for name in found}, "write the reason into the table"


def test_every_room_has_its_line(repository: Path) -> None:
    """In the table of rooms of docs/architecture.md: a folder as `graph/`, a module at the top as `api.py`."""
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = {
        word
        for line in page.splitlines()
        if line.startswith("| ")
        for word in re.findall(r"`([^`]+)`", line.split("|")[1])
    }
    folders = {path.parent.relative_to(PACKAGE).as_posix() + "/" for path in MODULES} - {"./"}
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert not sorted((folders | modules) - told), "these have no line"
    assert not sorted(one for one in told - folders - modules if one.endswith(("/", ".py"))), "these are no more"


# -- the rules above catch what they are for


RIGHT = [
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
]


def test_the_rule() -> None:
    assert [(here, there, allowed(here, there)) for here, there, _ in RIGHT] == RIGHT


def test_rings_are_found() -> None:
    sees = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d", "f"}, "f": {"e"}}
    assert rings(sees) == [{"a", "b", "c"}, {"e", "f"}]


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
