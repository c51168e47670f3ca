"""The command line: exit codes, one line for a mistake, JSON that fits its schema, and a start that does not wait."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest

from onnxsparse.cli import COMMANDS, main
from onnxsparse.engines.ort import library
from onnxsparse.version import __version__

Arguments = list[str]
HELP_SECONDS = 0.3


@pytest.fixture(scope="session")
def files(digits_cnn: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The model of the demo, and what the commands make of it."""
    folder = tmp_path_factory.mktemp("files")
    made = {name: str(folder / name) for name in ("sparse.onnx", "masked.onnx", "plan.yaml", "new.onnx", "new.yaml")}
    dense = str(digits_cnn)
    for command, out in (("prune", "sparse.onnx"), ("mask", "masked.onnx"), ("plan", "plan.yaml")):
        assert main([command, dense, "-o", made[out], "--target", "ampere", "-q"]) == 0
    made["samples.npz"], made["all-levels"] = str(folder / "samples.npz"), str(folder / "levels")
    made["recipe.yaml"] = str(folder / "recipe.yaml")
    Path(made["recipe.yaml"]).write_text("modifiers:\n- !SparseGPTModifier {mask_structure: 2:4}\n", encoding="utf-8")
    images = np.random.default_rng(0).standard_normal((64, 1, 8, 8), np.float32)
    np.savez(made["samples.npz"], **{onnx.load(dense).graph.input[0].name: images})
    return {"dense.onnx": dense, "folder": str(folder), **made}


CALLS: dict[str, Arguments] = {
    "inspect": ["inspect", "dense.onnx"],
    "plan": ["plan", "dense.onnx", "-o", "new.yaml", "--pattern", "block:4x1", "--sparsity", "0.5", "--overwrite"],
    "channels": ["channels", "dense.onnx"],
    "permute": ["permute", "dense.onnx", "-o", "new.onnx", "--overwrite"],
    "prune --permute": ["prune", "dense.onnx", "-o", "new.onnx", "--target", "ampere", "--permute", "--overwrite"],
    "prune": ["prune", "dense.onnx", "-o", "new.onnx", "--target", "ampere", "--overwrite"],
    "prune everything": [
        "prune",
        "dense.onnx",
        "-o",
        "new.onnx",
        "--pattern",
        "3:7",
        "--allow",
        "stem,small",
        "--overwrite",
    ],
    "mask": ["mask", "dense.onnx", "-o", "new.onnx", "--target", "ampere", "--overwrite"],
    "fold": ["fold", "masked.onnx", "-o", "new.onnx", "--overwrite"],
    "fold --discard": ["fold", "masked.onnx", "-o", "new.onnx", "--discard", "--overwrite"],
    "verify": ["verify", "sparse.onnx"],
    "verify for a device": ["verify", "sparse.onnx", "--target", "ampere:asp"],
    "verify a plan": ["verify", "sparse.onnx", "--plan", "plan.yaml"],
    "verify what does not hold": ["verify", "dense.onnx", "--pattern", "2:4"],
    "finetune": [
        "finetune",
        "dense.onnx",
        "-o",
        "new.onnx",
        "--data",
        "samples.npz",
        "--target",
        "ampere",
        "--steps",
        "2",
        "--overwrite",
    ],
    "quantize": [
        "quantize",
        "sparse.onnx",
        "-o",
        "new.onnx",
        "--data",
        "samples.npz",
        "--max-loss",
        "50",
        "--overwrite",
    ],
    "quantize weights": ["quantize", "sparse.onnx", "-o", "new.onnx", "--scheme", "w4", "--overwrite"],
    "oneshot": [
        "oneshot",
        "dense.onnx",
        "-o",
        "new.onnx",
        "--recipe",
        "recipe.yaml",
        "--data",
        "samples.npz",
        "--overwrite",
    ],
    "analyze": ["analyze", "dense.onnx", "--data", "samples.npz"],
    "compare": ["compare", "dense.onnx", "sparse.onnx", "--samples", "2"],
    "levels": [
        "levels",
        "dense.onnx",
        "-o",
        "all-levels",
        "--data",
        "samples.npz",
        "--levels",
        "30",
        "--steps",
        "2",
        "--overwrite",
    ],
}


def call(words: Arguments, files: dict[str, str]) -> int:
    return main([files.get(word, word) for word in words])


@pytest.fixture(scope="session")
def schema(repository: Path) -> Any:
    return json.loads((repository / "onnxsparse" / "report" / "schema.json").read_text(encoding="utf-8"))


def refuse_constant(text: str) -> Any:
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("name", CALLS)
def test_json_fits_the_schema(name: str, files: dict[str, str], schema: Any, capsys: Any) -> None:
    if name in ("compare", "permute", "prune --permute") or name.startswith(("quantize", "oneshot")):
        pytest.importorskip("onnxruntime")
    if name in ("analyze", "finetune", "levels") and not library.available():
        pytest.skip("needs onnxruntime-training")
    code = call([*CALLS[name], "--json", "-"], files)
    report = json.loads(capsys.readouterr().out, parse_constant=refuse_constant)
    jsonschema.Draft202012Validator(schema).validate(report)
    assert report["command"] == ("prune" if name == "oneshot" else name.split()[0])  # that of its last step
    assert code == (0 if report["ok"] else 1)


def test_every_command_with_json_is_held_to_the_schema() -> None:
    assert {name.split()[0] for name in CALLS} == set(COMMANDS) - {"list", "recipe"}


def test_the_schema_is_valid_and_describes_every_field(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    objects = [schema, *schema["$defs"].values()]
    for entry in objects:
        assert entry["additionalProperties"] is False
        for key, value in entry["properties"].items():
            assert value.get("description") or "$ref" in value, key
    assert all(entry["description"] for entry in objects)


def test_json_into_a_file_leaves_the_table_on_the_terminal(files: dict[str, str], tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "report.json"
    assert call(["inspect", "dense.onnx", "--json", str(target)], files) == 0
    assert "head.weight" in capsys.readouterr().out
    assert json.loads(target.read_text(encoding="utf-8"))["command"] == "inspect"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a named pipe")
def test_json_does_not_wait_for_a_pipe(files: dict[str, str], tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert call(["inspect", "dense.onnx", "--json", str(tmp_path / "pipe")], files) == 2
    assert "is not an ordinary file; - is standard output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["verify", "sparse.onnx"], 0),
        (["verify", "sparse.onnx", "--pattern", "2:4"], 0),
        (["verify", "dense.onnx", "--pattern", "2:4"], 1),
        (["verify", "dense.onnx"], 2),
        (["prune", "dense.onnx", "-o", "absent.onnx", "--target", "ampere", "--strict"], 1),
        (["prune", "dense.onnx", "-o", "absent.onnx"], 2),
        (["prune", "dense.onnx", "-o", "sparse.onnx", "--target", "ampere"], 2),
        (["prune", "dense.onnx", "-o", "dense.onnx", "--target", "ampere"], 2),
        (["prune", "no-such.onnx", "-o", "absent.onnx", "--target", "ampere"], 2),
        (["prune", "dense.onnx", "-o", "absent.onnx", "--pattern", "2:4", "--sparsity", "0.5"], 2),
        (["list", "patterns"], 0),
        (["list", "pattern"], 2),
        (["prun"], 2),
        (["prune"], 2),
        ([], 0),
    ],
)
def test_exit_codes(words: Arguments, code: int, files: dict[str, str], capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(files["folder"])
    assert call(words, files) == code
    assert not os.path.exists("absent.onnx")
    error = capsys.readouterr().err
    said = code == 2 or (code == 1 and words[0] != "verify")
    assert len(error.splitlines()) == said
    assert not error or error.startswith("onnxsparse: ")


def test_quiet_says_nothing_but_what_is_wrong(files: dict[str, str], capsys: Any) -> None:
    assert call(["verify", "sparse.onnx", "-q"], files) == 0
    assert capsys.readouterr().out == ""
    assert call(["verify", "dense.onnx", "--pattern", "2:4", "-q"], files) == 1
    assert capsys.readouterr().out.startswith("DOES NOT HOLD")


def test_verbose_names_every_layer(files: dict[str, str], capsys: Any) -> None:
    assert call(["inspect", "dense.onnx", "-v"], files) == 0
    assert "Conv residual" in capsys.readouterr().out


def test_verbose_says_how_far_it_is_where_there_is_no_terminal(
    files: dict[str, str], capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("onnxsparse.cli.training.APART", 0.0)
    assert call(["verify", "sparse.onnx", "-v"], files) == call(["verify", "sparse.onnx"], files) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"verify: \d+ of \d+", line) for line in lines)


def test_a_person_sees_totals_reasons_and_the_next_step(files: dict[str, str], capsys: Any) -> None:
    assert call(CALLS["prune"], files) == 0
    shown = capsys.readouterr().out
    for words in ("4 of 5 weights", "once stored sparse", "multiply-accumulates", "allowing it would not help"):
        assert words in shown
    assert "trtexec --sparsity=enable --fp16" in shown
    assert "CPU runtime will not run this file faster" in shown


def test_the_same_options_twice_give_the_same_bytes(files: dict[str, str], tmp_path: Path) -> None:
    again = tmp_path / "again.onnx"
    assert call(["prune", "sparse.onnx", "-o", str(again), "--target", "ampere", "-q"], files) == 0
    assert again.read_bytes() == Path(files["sparse.onnx"]).read_bytes()


def test_version(capsys: Any) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onnxsparse {__version__}\n"


def python(*words: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).resolve().parent.parent
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=here, timeout=600)


def test_python_m_is_the_command_line() -> None:
    done = python("-m", "onnxsparse", "--version")
    assert (done.returncode, done.stdout) == (0, f"onnxsparse {__version__}\n")
    failed = python("-m", "onnxsparse", "prune", "no-such.onnx")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], ["prune", "--help"], ["--version"]])
def test_help_waits_for_no_package(words: Arguments) -> None:
    heavy = "{'numpy', 'onnx', 'google.protobuf', 'rich', 'yaml'}"
    code = f"import sys; from onnxsparse.cli import main; main({words}); print('loaded', {heavy} & set(sys.modules))"
    assert python("-c", code).stdout.splitlines()[-1] == "loaded set()"


def test_help_is_quick() -> None:
    resource = pytest.importorskip("resource")

    def seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(used.ru_utime + used.ru_stime)

    def once() -> float:
        before = seconds()
        assert python("-m", "onnxsparse", "--help").returncode == 0
        return seconds() - before

    assert min(once() for _ in range(3)) < HELP_SECONDS


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "MODEL", "-o", "out", "--target", "ampere"],
        ["prune", "MODEL", "-o", "out", "--target", "ampere"],
        ["mask", "MODEL", "-o", "out", "--target", "ampere"],
        ["fold", "MODEL", "-o", "out"],
        ["levels", "MODEL", "-o", "out", "--data", "x.npz"],
        ["verify", "MODEL", "--target", "ampere", "--json", "out"],
        ["inspect", "MODEL", "--json", "out"],
        ["recipe", "check", "none.yaml", "--json", "out"],
        ["finetune", "MODEL", "--check", "--data", "x.npz", "--json", "out"],
    ],
    ids=lambda words: words[0],
)
def test_what_several_processes_would_write_twice_is_refused(
    words: list[str],
    digits_cnn: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([str(digits_cnn) if word == "MODEL" else word for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "runs in one process, and WORLD_SIZE says that 2 were started" in said.err
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["inspect", str(digits_cnn), "--json", "out", "-q"]) == 0


def test_what_writes_nothing_is_done_by_several_processes(
    digits_cnn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["inspect", str(digits_cnn), "-q"]) == 0


def test_what_is_left_over_is_named_with_the_command(files: dict[str, str], capsys: Any) -> None:
    assert call(["inspect", "dense.onnx", "--dims", "1"], files) == 2
    assert capsys.readouterr().err.endswith("see `onnxsparse inspect --help`\n")
    assert call(["inspect", "dense.onnx", "--dim", "a=1", "b=2"], files) == 2
    told = capsys.readouterr().err
    assert "unrecognized arguments: b=2; several of --dim have commas between them, or --dim before each" in told
