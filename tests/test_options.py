"""Options are declared once: signatures, docstrings, flags, the reference page, recipes and messages follow options.py.

`python tests/test_options.py` writes the docstrings and the rows of docs/cli.md anew.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxsparse as osp
from onnxsparse import options
from onnxsparse.cli import build_parser, main
from onnxsparse.errors import OptionError, command_line
from onnxsparse.options import REQUIRED, Option, in_python, options_of
from onnxsparse.recipes.flags import KINDS, recipe_of
from onnxsparse.recipes.modifiers.levels import Levels

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, PAGE = ROOT / "onnxsparse", ROOT / "docs" / "cli.md"
FUNCTIONS: dict[str, type] = {
    {"fold": "fold_masks", "mask": "insert_masks"}.get(name, name): commands[0]
    for name, commands in options.COMMANDS.items()
    if name != "recipe"
}
MODEL = {
    "source": "the model: a path, its bytes, a ModelProto, or another model in memory; it is never changed.",
    "dense": "the model to compare with: a path, its bytes, a ModelProto, or another model in memory.",
    "sparse": "the model that is compared, in the same forms.",
}
SAID = re.compile(r"\(default|default here\)")
FOREIGN = {"--fp16", "--int8", "--help", "--version", "--json", "--verbose", "--quiet", "--debug", "--opts"}
ALL = [(name, one) for name, kinds in options.COMMANDS.items() for kind in kinds for one in options_of(kind).values()]


# -- Python


def arguments_of(name: str) -> str:
    """What the docstring of a function says of its arguments: meaning, default and an example of each."""
    function = getattr(osp, name)
    lines = ["Arguments:"]
    for parameter in inspect.signature(function).parameters:
        known = options_of(FUNCTIONS[name])
        said = MODEL[parameter] if parameter in MODEL else described(known[parameter])
        lines += textwrap.wrap(f"{parameter}: {said}", 112, initial_indent="    ", subsequent_indent="        ")
    return "\n".join(lines)


def described(one: Option) -> str:
    default = "" if one.default is REQUIRED or SAID.search(one.meaning) else f" Default: {one.default!r}."
    example = f"{one.name}={one.example}" if not one.flags and one.kind == "text" else one.spelled(one.example)
    meaning = "; ".join(filter(None, (in_python(one.meaning.replace("`", "")), one.python)))
    return f"{meaning}.{default} Example: {example}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_signature_is_that_of_the_options(name: str) -> None:
    parameters = inspect.signature(getattr(osp, name)).parameters
    known = options_of(FUNCTIONS[name])
    assert {one for one in parameters if one not in MODEL} == set(known)
    for one in known.values():
        parameter = parameters[one.name]
        assert (parameter.kind is inspect.Parameter.KEYWORD_ONLY) == (name != "oneshot" or one.default is not REQUIRED)
        assert parameter.default == (inspect.Parameter.empty if one.default is REQUIRED else one.default), one.name
        assert one.annotation in ("Any", parameter.annotation), one.name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_says_what_every_argument_means(name: str) -> None:
    found = inspect.getdoc(getattr(osp, name))
    assert found is not None
    assert found.endswith(arguments_of(name)), "run `python tests/test_options.py`"


def test_the_functions_for_torch_say_what_their_arguments_mean() -> None:
    tree = ast.parse((PACKAGE / "torch.py").read_text(encoding="utf-8"))
    functions = [one for one in tree.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    assert len(functions) == 12
    for function in functions:
        said = str(ast.get_docstring(function))
        for one in (*function.args.args, *function.args.kwonlyargs):
            assert re.search(rf"^ +{one.arg}: |`{one.arg}`", said, re.MULTILINE), f"{function.name}: {one.arg}"
        assert said.count("Example:") == len(function.args.kwonlyargs) + len(function.args.defaults)


# -- the command line and its page


def parsers() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return dict(commands.choices)


@pytest.mark.parametrize(("command", "one"), [(c, o) for c, o in ALL if o.flags], ids=lambda x: getattr(x, "name", x))
def test_flags_say_what_the_options_say(command: str, one: Option) -> None:
    (action,) = (action for action in parsers()[command]._actions if action.dest == one.name)
    assert tuple(action.option_strings) == one.flags
    assert action.help == one.meaning.replace("`", "").replace("%", "%%")
    if command != "levels":  # there a configuration counts where nothing was typed
        assert action.default in ([], one.default, None)
        assert action.default is not None or one.default in (None, REQUIRED)


def rows() -> Iterator[tuple[str, str, str]]:
    """What the page says of an option alone: the section, the row, and what it is to be."""
    section = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        section = line[3:] if line.startswith("## ") else section
        names = re.match(r"\| ((?:`-[\w-]+`(?:, )?)+) \|", line)
        flags = tuple(re.findall(r"`(-[\w-]+)`", names[1])) if names else ()
        one = next((one for command, one in ALL if command == section and one.flags == flags), None)
        if one is not None and flags and "as for" not in line:
            yield section, line, f"| {', '.join(f'`{flag}`' for flag in flags)} | {one.meaning}{one.more} |"


def test_the_page_says_what_the_options_say() -> None:
    found = list(rows())
    assert len(found) > 80
    for section, line, wanted in found:
        assert line == wanted, f"docs/cli.md, {section}: run `python tests/test_options.py`"


# -- recipes


@pytest.mark.parametrize("one", [one for one in options_of(options.FinetuneOptions).values() if one.recipe])
def test_what_a_recipe_has_is_a_field_of_a_modifier(one: Option) -> None:
    kinds = {kind.name: kind for kind in KINDS}
    modifier, _, name = one.recipe.partition(".")
    fields = kinds[modifier].__dataclass_fields__
    assert name in fields
    said, default = re.search(r"\(default `?([\w.-]+)`?\)|`([\w.-]+)` \(default\)", one.meaning), fields[name].default
    if said and default not in (None, "") and not isinstance(default, bool):
        assert (said[1] or said[2]) == str(default) or float(said[1]) == default


def test_the_levels_are_those_of_the_modifier() -> None:
    assert options_of(options.LevelsOptions)["levels"].default == Levels.levels


def test_a_level_of_a_device_is_a_sparsity_of_the_recipe() -> None:
    recipe = recipe_of({"target": "amba", "level": 70})
    assert recipe.to_yaml() == recipe_of({"target": "amba", "sparsity": 0.7}).to_yaml()
    with pytest.raises(OptionError, match="level= and sparsity= both say"):
        recipe_of({"target": "amba", "level": 70, "sparsity": 0.7})
    with pytest.raises(OptionError, match="level= belongs to a target"):
        recipe_of({"pattern": "2:4", "level": 70})
    with pytest.raises(OptionError, match="leave level= out"):
        recipe_of({"level": 70}, recipe)


# -- messages


@pytest.mark.parametrize("one", [one for _, one in ALL if one.flags], ids=lambda one: one.name)
def test_a_message_names_an_option_as_its_reader_does(one: Option) -> None:
    flag = one.flags[-1]
    name = "strict=False" if one.name == "lenient" else f"{one.name}=True" if one.kind == "switch" else f"{one.name}="
    error = OptionError(f"leave {flag} out, or {flag}: {flag} decides ({flag})")
    assert str(error) == f"leave {name} out, or {name}: {name} decides ({name})"
    with command_line():
        assert str(error) == error.as_flags == f"leave {flag} out, or {flag}: {flag} decides ({flag})"
    assert str(error).startswith(f"leave {name} out")


@pytest.mark.parametrize(
    ("flags", "python"),
    [
        ("learn numbers with --loss mse or l1", 'learn numbers with loss="mse" or l1'),
        ("--loss learns from them", "loss= learns from them"),
        ("leave --pattern, --score out", "leave pattern=, score= out"),
        ("needs --sparsity, such as --sparsity 0.8", "needs sparsity=, such as sparsity=0.8"),
        ("--sparsity takes 80%, not --sparsity 180%", 'sparsity= takes 80%, not sparsity="180%"'),
        ("--exclude dense fits 2 layers", 'exclude="dense" fits 2 layers'),
        ("--exclude it, or take --allocation uniform, too", 'exclude= it, or take allocation="uniform", too'),
        ("--dim height: no input has it", 'dims["height"]: no input has it'),
        ("pass --dim NAME=SIZE such as --dim x.2=224", 'pass dims={NAME: SIZE} such as dims={"x.2": 224}'),
        ("--axis logits=-1: an axis", 'axis={"logits": -1}: an axis'),
        ("--axis 7: no output", "axis=7: no output"),
        ("choose --metric loss", 'choose metrics=["loss"]'),
        ("--metric my:function needs labels", 'metrics=["my:function"] needs labels'),
        ("--allow stem,output to prune it", 'allow="stem,output" to prune it'),
        ("--seed and --score random:seed=3 both", 'seed= and score="random:seed=3" both'),
        ("--levels 30,50 and the others", 'levels="30,50" and the others'),
        ("trtexec --sparsity=enable --fp16 --onnx=m", "trtexec --sparsity=enable --fp16 --onnx=m"),
        ("a name with --exclude-less dashes, x--exclude", "a name with --exclude-less dashes, x--exclude"),
    ],
)
def test_values_are_told_from_the_words_of_the_sentence(flags: str, python: str) -> None:
    assert in_python(flags) == python
    assert in_python(python) == python


def test_messages_name_no_flag_that_there_is_not() -> None:
    known = {flag for _, one in ALL for flag in one.flags} | FOREIGN
    for path in PACKAGE.rglob("*.py"):
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w=-])", text))
            assert named <= known, f"{path}: {named - known}"


def texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" not in node.value:
            yield node.value


@pytest.mark.parametrize(
    ("command", "flags", "given", "said"),
    [
        ("prune", ["--pattern", "2:4", "--exclude", "dnse"], {"pattern": "2:4", "exclude": "dnse"}, "exclude="),
        ("prune", ["--pattern", "2:4", "--overwrite"], None, "overwrite=True"),
        ("prune", ["--pattern", "2:4", "--strict"], {"pattern": "2:4", "strict": True}, "strict=True"),
        ("prune", ["--pattern", "unstructured"], {"pattern": "unstructured"}, "sparsity=0.8"),
        ("prune", ["--pattern", "2:4", "--dim", "x=3"], {"pattern": "2:4", "dims": {"x": 3}}, 'dims["x"]'),
        ("mask", ["--pattern", "2:4", "--epoch", "0"], {"pattern": "2:4", "epoch": 0}, "epoch= goes with recipe="),
        ("mask", ["--pattern", "2:4", "--form", "box"], {"pattern": "2:4", "form": "box"}, "form= is one of"),
        ("fold", ["--discard", "--pattern", "2:4"], {"discard": True, "pattern": "2:4"}, "discard=True drops"),
    ],
)
def test_a_mistake_is_said_in_the_words_of_who_made_it(
    digits_cnn: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    flags: list[str],
    given: dict[str, Any] | None,
    said: str,
) -> None:
    out = tmp_path / "out.onnx"
    if given is None:  # the file is in the way
        out.write_bytes(b"x")
        flags, given = flags[:-1], {"pattern": "2:4"}
    function = {"mask": osp.insert_masks, "fold": osp.fold_masks, "prune": osp.prune}[command]
    with pytest.raises(osp.OnnxSparseError) as error:
        function(digits_cnn, output=out, **given)
    assert said in str(error.value)
    assert "--" not in str(error.value)
    assert main([command, str(digits_cnn), "-o", str(out), *flags]) == error.value.exit_code
    assert capsys.readouterr().err == f"onnxsparse: {error.value.as_flags}\n"
    assert "--" in error.value.as_flags


# -- what is shown


def test_a_result_is_one_line_and_prints_a_table(digits_cnn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    result = osp.prune(digits_cnn, pattern="2:4")
    for one in (result, result.report):
        assert len(repr(one)) < 200
        assert "\n" not in repr(one)
        assert "wide.weight" in str(one)
        assert "4 of 5 weights pruned" in str(one)
    assert 'allow="stem,small"' in str(osp.inspect(digits_cnn))
    assert "--allow stem,small" in osp.inspect(digits_cnn).report.row("stem.weight").advice


def renew() -> None:
    """Write what is generated: the arguments in the docstrings, and the rows of the page."""
    for name in FUNCTIONS:
        path = Path(str(inspect.getsourcefile(getattr(osp, name))))
        lines = path.read_text(encoding="utf-8").splitlines()
        functions = (one for one in ast.walk(ast.parse("\n".join(lines))) if isinstance(one, ast.FunctionDef))
        function = next(one for one in functions if one.name == name)
        start, end = function.body[0].lineno - 1, function.body[0].end_lineno
        text = "\n".join(lines[start:end]).strip().strip('"').partition("\n\n    Arguments:")[0].rstrip()
        more = textwrap.indent(arguments_of(name), "    ")
        lines[start:end] = f'    """{text}\n\n{more}\n    """'.splitlines()
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8").splitlines()
    found = list(rows())
    for number, line in enumerate(page):
        if found and line == found[0][1]:
            page[number] = found.pop(0)[2]
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()


# -- values that mean nothing


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": -1}, "lr="), ({"batch_size": 0}, "batch_size="), ({"lr_schedule": "foo"}, "lr_schedule="),
        ({"weight_decay": -1}, "weight_decay="), ({"warm_up": -1}, "warm_up="), ({"updates": 0}, "updates="),
        ({"checks": 0}, "checks="), ({"epochs": "x"}, "epochs="), ({"lr": "x"}, "lr="), ({"loss": 5}, "loss="),
        ({"exclude": 3}, "names of weights"), ({"dims": 5}, "dims="), ({"resume": True}, "checkpoint="),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_by_its_option(given: dict[str, Any], said: str) -> None:
    """From Python by the name of the argument, whatever the field of the recipe is called that it becomes."""
    model = PACKAGE.parent / "models" / "digits_cnn.onnx"
    with pytest.raises(osp.OnnxSparseError) as error:
        osp.finetune(model, data={"x": np.zeros((8, 1, 8, 8), np.float32)}, pattern="2:4", **given)
    assert said in str(error.value), str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_or_a_plan_is_no_model(tmp_path: Path) -> None:
    model = PACKAGE.parent / "models" / "digits_cnn.onnx"
    made = osp.plan(model, pattern="2:4", output=tmp_path / "plan.yaml")
    assert made.path is not None
    assert made.model is None
    assert made.graph is None
