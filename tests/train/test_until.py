"""`--until`: detectors train before their post-processing, and come back whole; copies train as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import onnxsparse as osp
from onnxsparse.cli import main
from onnxsparse.errors import ModelError, OptionError
from onnxsparse.graph.model import Model
from onnxsparse.planning.plan import make_plan
from onnxsparse.planning.rule import Rule
from onnxsparse.planning.trainable import trainables
from onnxsparse.recipes import Recipe
from onnxsparse.train.cut import search_in
from onnxsparse.train.task import ask
from tests.engine_marks import ENGINES, TRAINS
from tests.train.small_detectors import one_stage, pictures, two_levels, two_stage

ALLOWED: dict[str, Any] = {"pattern": "2:4", "allow": "output,small,stem"}


def points_of(proto: ModelProto, *names: str) -> tuple[set[str], set[str]]:
    model = Model.open(proto)
    search = search_in(model, trainables(model, make_plan(model, Rule.make("2:4"))))
    found = search.named(names) if names else search.auto()
    return set(found.heads), set(found.given)


def arrays_of(proto: ModelProto) -> dict[str, Any]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def same_but_weights(one: ModelProto, other: ModelProto) -> bool:
    """Whether nodes, inputs and outputs are the same, and tensors have the same names and shapes."""
    pairs = [(one.graph.node, other.graph.node), (one.graph.input, other.graph.input)]
    shapes = [{name: array.shape for name, array in arrays_of(proto).items()} for proto in (one, other)]
    return (
        all(list(a) == list(b) for a, b in pairs)
        and list(one.graph.output) == list(other.graph.output)
        and shapes[0] == shapes[1]
    )


def test_the_last_values_that_weights_make_are_found_before_anything_is_decoded() -> None:
    heads, given = points_of(one_stage())
    assert heads == {"scores_map.0", "boxes_map.0", "scores_map.1", "boxes_map.1"}
    assert not given


def test_a_second_stage_is_given_its_boxes_and_the_pictures_that_they_are_of() -> None:
    heads, given = points_of(two_stage())
    assert heads == {"logits", "deltas", "scores"}
    assert given == {"rois", "pictures"}


def test_several_levels_of_pooling_are_given_the_one_list_of_boxes_that_all_of_them_choose_from() -> None:
    proto = two_stage()
    (pool,) = (node for node in proto.graph.node if node.op_type == "RoiAlign")
    place = list(proto.graph.node).index(pool)
    made = [
        onnx.helper.make_node("Gather", ["rois", level], [f"rois.{level}"]) for level in ("zero", "one")
    ] + [onnx.helper.make_node("Shape", ["rois.one"], ["their_size"])]  # fmt: skip
    for name, boxes in (("low", "rois.zero"), ("high", "rois.one")):
        node = onnx.NodeProto()
        node.CopyFrom(pool)
        node.input[1], node.input[2], node.output[0] = boxes, "zero", f"pooled.{name}"
        made.append(node)
    made.append(onnx.helper.make_node("Concat", ["pooled.low", "pooled.high"], ["pooled"], axis=0))
    nodes = [*proto.graph.node[:place], *made, *proto.graph.node[place + 1 :]]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    assert points_of(proto)[1] == {"rois"}


def test_named_tensors_have_to_be_made_by_weights() -> None:
    assert points_of(one_stage(), "logits", "deltas") == ({"logits", "deltas"}, set())
    assert points_of(two_stage(), "logits")[1] == set()
    with pytest.raises(OptionError, match=r"no node of the model makes 'logit' \(did you mean logits\?\)"):
        points_of(one_stage(), "logit")
    with pytest.raises(OptionError, match="no weight has a say in 'count'"):
        points_of(two_stage(), "count")


def test_without_it_a_detector_that_ends_in_a_choice_is_told_of_it() -> None:
    with pytest.raises(ModelError, match='until="auto" trains the part before its post-processing'):
        osp.finetune(one_stage(), data={"x": pictures()}, pattern="2:4")


@TRAINS
def test_neither_rounding_nor_states_go_with_it() -> None:
    with pytest.raises(OptionError, match="neither for a run that quantizes"):
        osp.finetune(one_stage(), data={"x": pictures()}, quantize="int8", until="auto")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_detector_with_copied_heads_trains_as_one_and_comes_back_whole(engine: str) -> None:
    dense = one_stage()
    result = osp.finetune(
        dense, data={"x": pictures()}, steps=12, batch_size=8, engine=engine, until="auto", tie_equal=True, **ALLOWED
    )
    assert result.model is not None
    assert same_but_weights(dense, result.model)
    assert osp.verify(result.model).report.ok
    details: dict[str, Any] = dict(result.report.details)
    assert details["loss"] < details["loss_without_training"]
    assert len(details["until"]) == 4
    before, after = arrays_of(dense), arrays_of(result.model)
    factors = (before["head.1"] / before["head.0"])[:, :1, :1, :1]
    np.testing.assert_allclose(after["head.1"], after["head.0"] * factors, rtol=1e-5, atol=1e-6)
    assert np.abs(after["head.0"] - before["head.0"])[after["head.0"] != 0].max() > 1e-4
    rows = {row.name: row for row in result.report.rows}
    assert rows["head.1"].reason == "tied with 'head.0'"


class StopError(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("until", ["auto", None])
def test_copies_are_one_weight_still_when_a_run_that_was_stopped_goes_on(
    tmp_path: Path, engine: str, until: str | None
) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["step"] > 6:
            raise StopError

    dense = one_stage() if until else without_choice(one_stage())
    given: dict[str, Any] = {
        "data": {"x": pictures()}, "steps": 12, "batch_size": 8, "engine": engine, "until": until, "tie_equal": True,
        **ALLOWED,
    }  # fmt: skip
    whole = osp.finetune(dense, **given)
    with pytest.raises(StopError):
        osp.finetune(dense, checkpoint=tmp_path / "run", watch=stop, **given)
    resumed = osp.finetune(dense, checkpoint=tmp_path / "run", resume=True, **given)
    assert whole.model is not None
    assert resumed.model is not None
    assert resumed.model.graph == whole.model.graph
    before, after = arrays_of(dense), arrays_of(resumed.model)
    factors = (before["head.1"] / before["head.0"])[:, :1, :1, :1]
    np.testing.assert_allclose(after["head.1"], after["head.0"] * factors, rtol=1e-5, atol=1e-6)


def without_choice(proto: ModelProto) -> ModelProto:
    """The same network, whose outputs are what its post-processing decodes."""
    made = [node for node in proto.graph.node if node.op_type not in ("NonMaxSuppression", "Squeeze", "Gather")]
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.node.extend(made)
    for name in ("logits", "decoded"):
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return proto


def batches() -> Iterator[dict[str, Any]]:
    every = pictures()
    for start in range(0, len(every), 8):
        yield {"x": every[start : start + 8]}


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_behind_the_boxes_train_with_those_of_the_dense_model(engine: str) -> None:
    dense = two_stage()
    data: Any = {"x": pictures()} if engine == "ort" else batches
    result = osp.finetune(dense, data=data, steps=12, batch_size=8, engine=engine, until="auto", **ALLOWED)
    assert result.model is not None
    assert same_but_weights(dense, result.model)
    details: dict[str, Any] = dict(result.report.details)
    assert details["loss"] < details["loss_without_training"]
    assert details["metrics"]["distance:scores"] < details["metrics_without_training"]["distance:scores"]
    before, after = arrays_of(dense), arrays_of(result.model)
    for name in ("fc", "classes", "c2"):
        assert np.abs(after[name] - before[name])[after[name] != 0].max() > 1e-4
    assert not details["distance_of_file"]
    assert any("'NonMaxSuppression' chooses what they are of" in note for note in result.report.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_layers_behind_several_levels_of_pooling_train_though_each_has_as_many_boxes_as_data_say(engine: str) -> None:
    dense = two_levels()
    result = osp.finetune(dense, data={"x": pictures()}, steps=12, batch_size=8, engine=engine, until="auto", **ALLOWED)
    assert result.model is not None
    assert same_but_weights(dense, result.model)
    assert not any("not trained" in note for note in result.report.notes)
    before, after = arrays_of(dense), arrays_of(result.model)
    for name in ("fc", "classes", "c2"):
        assert np.abs(after[name] - before[name])[after[name] != 0].max() > 1e-4


@pytest.mark.slow
@TRAINS
def test_every_level_has_the_copies_alike(tmp_path: Path) -> None:
    folder, dense = tmp_path / "out", arrays_of(one_stage())
    osp.levels(
        one_stage(), data={"x": pictures(24)}, output=folder, levels="30,60", steps=4, batch_size=4, until="auto",
        tie_equal=True, allow="output,small,stem",
    )  # fmt: skip
    factors = (dense["head.1"] / dense["head.0"])[:, :1, :1, :1]
    for level in (30, 60):
        made = arrays_of(onnx.load(str(folder / f"level-{level}.onnx")))
        assert np.array_equal(made["head.0"] != 0, made["head.1"] != 0)
        np.testing.assert_allclose(made["head.1"], made["head.0"] * factors, rtol=1e-5, atol=1e-6)
        assert abs((made["head.0"] == 0).mean() - level / 100) < 0.15


@TRAINS
def test_a_file_that_ends_in_whole_numbers_is_not_said_to_vary_in_size() -> None:
    proto = one_stage()
    nodes = [node for node in proto.graph.node if node.op_type in ("Conv", "Relu")][:5]
    end = onnx.helper.make_node("ArgMax", [nodes[-1].output[0]], ["classes"], axis=1)
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.node.extend([*nodes, end])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("classes", onnx.TensorProto.INT64, None))
    result = osp.finetune(proto, data={"x": pictures()}, steps=2, batch_size=8, until="auto", pattern="2:4")
    assert any("whole numbers or truth values" in note for note in result.report.notes)
    assert not any("differs from sample to sample" in note for note in result.report.notes)


@pytest.mark.slow
@TRAINS
def test_the_command_line_trains_up_to_names_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    onnx.save(one_stage(), str(tmp_path / "dense.onnx"))
    np.savez(tmp_path / "data.npz", x=pictures())
    call = ["finetune", "dense.onnx", "--data", "data.npz", "--until", "logits,deltas", "--pattern", "2:4"]
    call = [str(tmp_path / one) if one.endswith(("onnx", "npz")) else one for one in call]
    for name in ("one", "other"):
        more = ["--checkpoint", str(tmp_path / "run"), *(["--resume"] if name == "other" else [])]
        assert main([*call, "-o", str(tmp_path / f"{name}.onnx"), "--steps", "6", "--batch-size", "8", *more]) == 0
    one, other = (onnx.load(str(tmp_path / f"{name}.onnx")) for name in ("one", "other"))
    assert one.graph == other.graph


def test_outputs_behind_a_choice_are_not_compared_and_those_before_it_are() -> None:
    both = one_stage()
    both.graph.output.append(onnx.helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, None))
    model = Model.open(both)
    search = search_in(model, trainables(model, make_plan(model, Rule.make("2:4"))))
    assert {value.name for value in both.graph.output} - search.chosen == {"p"}


def test_zeros_that_are_held_back_now_are_named_with_the_word_that_prunes_them() -> None:
    sparse = osp.prune(one_stage(), pattern="2:4", allow="output,small,stem").model
    assert sparse is not None
    frame = "modifiers:\n- !training {steps: 4, batch: 8}\n- !objective {}\n- !keep-best {checks: 3}\n"
    recipes = {word: f"{frame}- !pruning {{target: ampere, allow: [{word}]}}\n" for word in ("", "small")}
    data = {"x": pictures()}
    notes = {word: ask(sparse, Recipe.load(text), data, until="auto").notes for word, text in recipes.items()}
    assert any("are lost" in note and note.endswith("--allow small prunes them, too") for note in notes[""])
    assert not any("are lost" in note for note in notes["small"])
