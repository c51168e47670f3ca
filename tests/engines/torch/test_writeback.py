"""The way back: trained numbers in the user's own file, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx
from onnx import helper, numpy_helper
from onnx.helper import make_node
from torch.nn.utils import prune

import onnxsparse as osp
from onnxsparse.errors import ModelError, OptionError, OutputError
from onnxsparse.graph.model import Model
from onnxsparse.torch import to_module, write_back
from tests.engines.torch.running import apply, model, numbers
from tests.messages import refusing

X = {"x": numbers(3, 4)}


def branch(name: str, seed: int) -> Any:
    nodes = [make_node("Constant", [], ["w"], value=numpy_helper.from_array(numbers(4, 4, seed=seed))),
             make_node("MatMul", ["x", "w"], [name])]  # fmt: skip
    return helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(name)])


def chosen() -> Any:
    """The same name in two branches, and weights in halves and doubles."""
    nodes = [
        make_node("If", ["c"], ["i"], then_branch=branch("t", 1), else_branch=branch("o", 2)),
        make_node("Cast", ["half"], ["f"], to=1),
        make_node("MatMul", ["i", "f"], ["y"]),
    ]
    return model(nodes, {**X, "c": np.array(True)}, {"half": numbers(4, 2).astype(np.float16)})


def trained(module: Any) -> Any:
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.mul_(1.5 + index)
    return module


@pytest.mark.parametrize("choice", [True, False])
def test_trained_numbers_come_back_in_their_scope_and_type(choice: bool) -> None:
    proto = chosen()
    module = trained(to_module(proto))
    back = write_back(module, proto)
    assert back is not None
    assert proto.SerializeToString() == chosen().SerializeToString()
    assert [one.data_type for one in back.graph.initializer] == [one.data_type for one in proto.graph.initializer]
    feeds = {**X, "c": np.array(choice)}
    assert torch.equal(apply(to_module(back), feeds)[0], apply(module, feeds)[0])


def test_numbers_that_did_not_change_leave_every_byte_as_it_was(digits_cnn: Path, tmp_path: Path) -> None:
    write_back(to_module(digits_cnn), digits_cnn, output=tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == digits_cnn.read_bytes()


def test_training_a_file_and_back(digits_cnn: Path, tmp_path: Path) -> None:
    module = to_module(digits_cnn)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    shape = [one.dim_value or 2 for one in onnx.load(digits_cnn).graph.input[0].type.tensor_type.shape.dim]
    feeds = {module.onnx_names["inputs"][0]: numbers(*shape)}
    apply(module, feeds)[0].square().sum().backward()
    optimizer.step()
    osp.torch.write_back(module, digits_cnn, output=tmp_path / "trained.onnx")
    again = to_module(tmp_path / "trained.onnx")
    assert torch.equal(apply(again, feeds)[0], apply(module, feeds)[0])
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), again.parameters()))
    with pytest.raises(OutputError):
        write_back(module, digits_cnn, output=tmp_path / "trained.onnx")


def test_data_files_stay_data_files(tmp_path: Path) -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], X, {"w": numbers(4, 5)})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    module = trained(to_module(tmp_path / "m.onnx"))
    (tmp_path / "out").mkdir()
    write_back(module, tmp_path / "m.onnx", output=tmp_path / "out" / "m.onnx")
    assert (tmp_path / "out" / "m.onnx.data").stat().st_size == 80
    assert torch.equal(to_module(tmp_path / "out" / "m.onnx").w, module.w)


def test_bfloat16_is_kept_bit_for_bit() -> None:
    weight = helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [4, 5], numbers(4, 5).reshape(-1).tolist())
    proto = model([make_node("Cast", ["w"], ["f"], to=1), make_node("MatMul", ["x", "f"], ["y"])], X)
    proto.graph.initializer.append(weight)
    module = trained(to_module(proto))
    back = write_back(module, proto)
    assert module.w.dtype == torch.bfloat16
    assert back is not None
    assert torch.equal(to_module(back).w, module.w)


def test_statistics_come_back_where_they_were_followed() -> None:
    feeds = {"x": numbers(4, 3, 5, 5)}
    stored = {"s": numbers(3), "b": numbers(3), "m": numbers(3), "v": np.float32([1, 2, 3])}
    nodes = [make_node("Identity", ["m"], ["i"]), make_node("BatchNormalization", ["x", "s", "b", "i", "v"], ["y"])]
    proto = model(nodes, feeds, stored)
    module = to_module(proto, train_bn=True)
    apply(module, feeds)
    back = write_back(module, proto)
    assert back is not None
    found = {one.name: numpy_helper.to_array(one) for one in back.graph.initializer}
    assert not np.array_equal(found["m"], stored["m"])
    assert np.array_equal(found["v"], module.v.numpy())


def test_masks_of_torch_and_wrappers_are_seen_through() -> None:
    proto = model([make_node("MatMul", ["x", "fc.w"], ["y"])], X, {"fc.w": numbers(4, 5)})
    module = to_module(proto)
    prune.l1_unstructured(module.fc, "w", 0.5)
    back = write_back(torch.nn.DataParallel(module), proto)
    assert back is not None
    assert int((numpy_helper.to_array(back.graph.initializer[0]) == 0).sum()) == 10


def test_a_model_that_is_open_gets_edits(digits_cnn: Path) -> None:
    opened = osp.load(digits_cnn)
    module = trained(to_module(opened))
    assert write_back(module, opened) is None
    again = to_module(opened.take_proto())
    assert all(torch.equal(one, other) for one, other in zip(module.parameters(), again.parameters()))


def test_another_model_or_module_is_refused() -> None:
    proto = model([make_node("MatMul", ["x", "w"], ["y"])], X, {"w": numbers(4, 5)})
    other = model([make_node("MatMul", ["x", "w"], ["y"])], X, {"w": numbers(4, 6)})
    with refusing(ModelError):
        write_back(to_module(proto), other)
    other.graph.initializer[0].name = other.graph.node[0].input[1] = "v"
    with refusing(ModelError):
        write_back(to_module(proto), other)
    with refusing(OptionError):
        write_back(torch.nn.Linear(2, 2), proto)
    without = to_module(proto)
    del without.w
    with refusing(OptionError):
        write_back(without, proto)


def test_arguments_in_the_wrong_order_are_told_the_right_one(digits_cnn: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    calls = {
        "match(model, module)": lambda: osp.torch.match(net, digits_cnn),
        "write_back(module, model)": lambda: write_back(digits_cnn, net),
        "attach(module, source)": lambda: osp.torch.attach(digits_cnn, net),
        "to_module(model)": lambda: to_module(net),
        "record_match(model, match)": lambda: osp.torch.record_match(osp.torch.Match(), digits_cnn),
    }
    for order, call in calls.items():
        with pytest.raises(OptionError) as found:
            call()
        assert f"the order is osp.torch.{order}" in str(found.value)
        assert "\n" not in str(found.value)
        assert len(str(found.value)) < 150
    for wrong in (digits_cnn, net.state_dict()):
        with refusing(OptionError):
            osp.torch.finish(wrong)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_do_not_come_back(bad: float) -> None:
    proto = chosen()
    module = trained(to_module(proto))
    with torch.no_grad():
        list(module.parameters())[-1][0, 0] = bad
    opened = Model.open(proto)
    with refusing(ModelError):
        write_back(module, opened)
    assert all(tensor.edit is None for tensor in opened.flow.stores.homes)
