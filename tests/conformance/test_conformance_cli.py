"""Exit codes, files, and the words a user types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from graphs.builders import CASES
from graphs.expectations import EVERYTHING

cli: Any = pytest.importorskip("onnxsparse.cli")
ALLOW = ["--allow", ",".join(EVERYTHING)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return CASES["many_kinds_in_one"].build().write(tmp_path)


def mistake(arguments: list[str], capfd: Any) -> str:
    """Run what must be refused and return the one line."""
    assert cli.main(arguments) == 2
    err: str = capfd.readouterr().err
    assert len([line for line in err.splitlines() if line.strip()]) == 1, err
    assert "Traceback" not in err
    assert "internal error" not in err
    return err


def test_prune_needs_a_rule(source: Path, tmp_path: Path, capfd: Any) -> None:
    for command in ("prune", "mask", "plan"):
        line = mistake([command, str(source), "-o", str(tmp_path / "o")], capfd)
        assert "pattern" in line
        assert "target" in line


@pytest.mark.parametrize("pattern", ["unstructured", "block:4x1", "filter", "channel"])
def test_sparsity_is_required(pattern: str, source: Path, tmp_path: Path, capfd: Any) -> None:
    assert "sparsity" in mistake(["prune", str(source), "-o", str(tmp_path / "o"), "--pattern", pattern], capfd)


@pytest.mark.parametrize("extra", [["--pattern", "2:4"], ["--target", "ampere"]])
def test_sparsity_is_refused_for_n_of_m(extra: list[str], source: Path, tmp_path: Path, capfd: Any) -> None:
    assert "sparsity" in mistake(["prune", str(source), "-o", str(tmp_path / "o"), *extra, "--sparsity", "0.5"], capfd)


@pytest.mark.parametrize("sparsity", ["1.5", "-0.1", "nan", "inf", "80%x", "", "0,8"])
def test_sparsity_is_a_share(sparsity: str, source: Path, tmp_path: Path, capfd: Any) -> None:
    mistake(
        ["prune", str(source), "-o", str(tmp_path / "o"), "--pattern", "unstructured", f"--sparsity={sparsity}"], capfd
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "4:2",
        "2:2",
        "0:4",
        "2:0",
        "-1:4",
        "2:4:8",
        "two:four",
        "block:0x4",
        "block:4",
        "blok:4x1",
        "2:1000000000",
        "",
        "unstructred",
    ],
)
def test_patterns_that_mean_nothing(pattern: str, source: Path, tmp_path: Path, capfd: Any) -> None:
    mistake(["prune", str(source), "-o", str(tmp_path / "o"), f"--pattern={pattern}"], capfd)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["--pattern", "unstructred", "--sparsity", "0.5"], "unstructured"),
        (["--pattern", "2:4", "--score", "magnitud"], "magnitude"),
        (["--pattern", "unstructured", "--sparsity", "0.5", "--allocation", "globl"], "global"),
        (["--pattern", "2:4", "--allow", "embeding"], "embedding"),
        (["--pattern", "2:4", "--include", "stm"], "stem"),
        (["--pattern", "2:4", "--exclude", "stm"], "stem"),
        (["--target", "amper"], "ampere"),
        (["--target", "ampere:tensort"], "tensorrt"),
    ],
)
def test_misspelt_words_get_a_suggestion(
    arguments: list[str], near: str, source: Path, tmp_path: Path, capfd: Any
) -> None:
    assert near in mistake(["prune", str(source), "-o", str(tmp_path / "o"), *arguments], capfd)


@pytest.mark.parametrize("allocation", ["global", "erk"])
@pytest.mark.parametrize("pattern", ["2:4", "filter", "channel"])
def test_allocations_that_do_not_fit(allocation: str, pattern: str, source: Path, tmp_path: Path, capfd: Any) -> None:
    sparsity = [] if pattern == "2:4" else ["--sparsity", "0.5"]
    mistake(
        ["prune", str(source), "-o", str(tmp_path / "o"), "--pattern", pattern, "--allocation", allocation, *sparsity],
        capfd,
    )


def test_output_is_not_overwritten(source: Path, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "o.onnx").write_bytes(b"precious")
    command = ["prune", str(source), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", *ALLOW]
    assert "overwrite" in mistake(command, capfd)
    assert (tmp_path / "o.onnx").read_bytes() == b"precious"
    assert cli.main([*command, "--overwrite"]) == 0
    onnx.load(str(tmp_path / "o.onnx"))


@pytest.mark.parametrize("alias", ["same", "link", "dots"])
def test_in_place_only_with_overwrite(alias: str, source: Path, capfd: Any) -> None:
    before = source.read_bytes()
    target = {
        "same": source,
        "link": source.parent / "link.onnx",
        "dots": source.parent / "." / ".." / source.parent.name / source.name,
    }[alias]
    if alias == "link":
        target.symlink_to(source)
    command = ["prune", str(source), "-o", str(target), "--pattern", "2:4", *ALLOW]
    mistake(command, capfd)
    assert source.read_bytes() == before
    assert cli.main([*command, "--overwrite"]) == 0
    assert target.read_bytes() != before


def test_strict_writes_nothing(source: Path, tmp_path: Path, capfd: Any) -> None:
    code = cli.main(["prune", str(source), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", "--strict"])
    assert code == 1
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "o.onnx").exists()


def test_strict_is_content_when_all_is_done(tmp_path: Path) -> None:
    path = CASES["conv_of_256"].build().write(tmp_path)
    assert cli.main(["prune", str(path), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", "--strict"]) == 0


def test_plan_is_read_back(source: Path, tmp_path: Path) -> None:
    plan, direct, planned = tmp_path / "plan.yaml", tmp_path / "a.onnx", tmp_path / "b.onnx"
    rule = ["--pattern", "2:4", *ALLOW]
    assert cli.main(["plan", str(source), *rule, "-o", str(plan)]) == 0
    assert cli.main(["prune", str(source), *rule, "-o", str(direct)]) == 0
    assert cli.main(["prune", str(source), "--plan", str(plan), "-o", str(planned)]) == 0
    a, b = onnx.load(str(direct)), onnx.load(str(planned))
    assert [one.SerializeToString() for one in a.graph.initializer] == [
        one.SerializeToString() for one in b.graph.initializer
    ]
    assert cli.main(["verify", str(planned), "--plan", str(plan)]) == 0
    assert cli.main(["verify", str(source), "--plan", str(plan)]) == 1


@pytest.mark.parametrize(
    "text",
    ["", "not: [a plan", "!!python/object/apply:os.system ['true']", "- 1\n- 2\n", "a: &a [*a]", "\x00", "&a [" * 3000],
)
def test_plans_that_are_none(text: str, source: Path, tmp_path: Path, capfd: Any) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)
    mistake(["prune", str(source), "--plan", str(plan), "-o", str(tmp_path / "o.onnx")], capfd)
    assert not (tmp_path / "o.onnx").exists()


def test_plan_of_another_model(source: Path, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "other").mkdir()
    other = CASES["conv_of_256"].build().write(tmp_path / "other")
    plan = tmp_path / "plan.yaml"
    assert cli.main(["plan", str(other), "--pattern", "2:4", "-o", str(plan)]) == 0
    capfd.readouterr()
    mistake(["prune", str(source), "--plan", str(plan), "-o", str(tmp_path / "o.onnx")], capfd)


def test_json_goes_to_a_file_and_has_a_version(source: Path, tmp_path: Path) -> None:
    for command in (["inspect", str(source)], ["verify", str(source), "--pattern", "2:4"]):
        cli.main([*command, "--json", str(tmp_path / "r.json"), *([])])
        content = json.loads((tmp_path / "r.json").read_text())
        assert any("version" in key for key in content)
        (tmp_path / "r.json").unlink()


def test_compare_and_list(source: Path, tmp_path: Path, capfd: Any) -> None:
    assert cli.main(["prune", str(source), "-o", str(tmp_path / "o.onnx"), "--pattern", "2:4", *ALLOW]) == 0
    assert cli.main(["compare", str(source), str(tmp_path / "o.onnx")]) == 0
    for kind in ([], ["patterns"], ["scores"], ["allocations"], ["targets"]):
        capfd.readouterr()
        assert cli.main(["list", *kind]) == 0
        assert capfd.readouterr().out
    mistake(["list", "pattrns"], capfd)


def test_a_person_is_told_the_truth(source: Path, tmp_path: Path, capfd: Any) -> None:
    assert (
        cli.main(["prune", str(source), "-o", str(tmp_path / "o.onnx"), "--target", "ampere", "--allow", "small"]) == 0
    )
    text = capfd.readouterr().out
    assert "trtexec" in text
    assert "--sparsity=enable" in text
    assert "CPU" in text
    assert "stem" in text


def test_masks_file(source: Path, tmp_path: Path, capfd: Any) -> None:
    """Masks by name from an npz; one that fits no tensor is the user's mistake, and pickles are not opened."""
    import numpy as np

    keep = np.zeros((8, 8), bool)
    keep[:, ::2] = True
    np.savez(tmp_path / "m.npz", w=keep)
    command = [
        "prune",
        str(source),
        "-o",
        str(tmp_path / "o.onnx"),
        "--pattern",
        "unstructured",
        "--sparsity",
        "0.5",
        *ALLOW,
    ]
    assert cli.main([*command, "--masks", str(tmp_path / "m.npz")]) == 0
    stored = {
        one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(str(tmp_path / "o.onnx")).graph.initializer
    }
    assert not stored["w"][:, 1::2].any()
    for bad in ({"ghost": keep}, {"w": keep[:4]}, {"w": np.array([{"a": 1}], dtype=object)}):
        np.savez(tmp_path / "bad.npz", **bad)
        capfd.readouterr()
        mistake([*command, "--overwrite", "--masks", str(tmp_path / "bad.npz")], capfd)


def test_module_runs_and_knows_its_version(repository: Path) -> None:
    for arguments in (["--version"], ["--help"], ["prune", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "onnxsparse", *arguments],
            capture_output=True,
            text=True,
            cwd=repository,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.parametrize(
    "arguments", [["prun"], ["prune"], ["inspect", "--no-such-option", "x"], ["inspect", "a", "b"]]
)
def test_usage_mistakes_exit_with_2(arguments: list[str], capfd: Any) -> None:
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert "Traceback" not in capfd.readouterr().err


def test_output_in_a_folder_that_is_not_there(source: Path, tmp_path: Path, capfd: Any) -> None:
    mistake(["prune", str(source), "-o", str(tmp_path / "no" / "o.onnx"), "--pattern", "2:4"], capfd)


def test_same_bytes_from_file_and_in_memory(source: Path, tmp_path: Path) -> None:
    import onnxsparse as osp

    first = osp.prune(source, output=tmp_path / "a.onnx", pattern="2:4", allow=EVERYTHING)
    second = osp.prune(source, output=tmp_path / "b.onnx", pattern="2:4", allow=EVERYTHING)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes() == first.model.SerializeToString()
    assert second.report.rows == first.report.rows
