"""SparseML's exporter: a module as an ONNX file, as a checkpoint, and samples with what it makes of them.

    exporter = ModuleExporter(model, output_dir="exported")
    exporter.export_onnx(sample_batch=torch.randn(1, 3, 224, 224))
    exporter.export_pytorch(optimizer, recipe=str(manager), epoch=9)
    exporter.export_samples([batch], sample_labels=[labels])

1. What is exported is a copy, in evaluation: masks are folded into it, and it has the names of the plain module.
2. A module that a recipe quantizes is exported with its fake quantization or, with `convert_qat`, as integers.
"""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxsparse.engines.torch.attach import bare_module
from onnxsparse.engines.torch.export import exporting
from onnxsparse.engines.torch.library import torch
from onnxsparse.engines.torch.parametrization import PATTERNS, all_masks, take_mask_off
from onnxsparse.engines.torch.permute.proof import Inputs, UnprovenError, copied
from onnxsparse.engines.torch.quantized_export import fake_quantized
from onnxsparse.engines.torch.quantized_module import stage_of
from onnxsparse.errors import OptionError, OutputError, one_line
from onnxsparse.files import Staged, make_folder
from onnxsparse.graph.model import Model
from onnxsparse.torch import export_quantized
from onnxsparse.train.torch_export import record_zeros

LOG = logging.getLogger("onnxsparse")
OPSET = 14
MODEL, CHECKPOINT, SCRIPT = "model.onnx", "model.pth", "model.pts"
FOLDERS = {"inp": "sample-inputs", "out": "sample-outputs", "lab": "sample-labels", "orig": "sample_originals"}
Names = list[str]


class ModuleExporter:
    """A module, and the folder that its exports go to."""

    def __init__(self, module: Any, output_dir: Any) -> None:
        self._folder = os.path.abspath(os.path.expanduser(os.fspath(output_dir)))
        try:
            self._module = copied(bare_module(module)).to("cpu")
        except UnprovenError as error:
            raise OptionError(f"the module cannot be exported: {error}") from None
        for _, owner, name in list(all_masks(self._module)):
            take_mask_off(owner, name)

    @classmethod
    def get_output_names(cls, out: Any) -> Names:
        """The names of what the module gave."""
        return names_of(out, "output")

    def export_onnx(
        self,
        sample_batch: Any,
        name: str = MODEL,
        opset: int = OPSET,
        disable_bn_fusing: bool = True,
        convert_qat: bool = False,
        **export_kwargs: Any,
    ) -> None:
        """Write the module as an ONNX file; further arguments are those of `torch.onnx.export`.

        The first axis of inputs and outputs has no fixed size. With `disable_bn_fusing` parameters keep their names.
        With `convert_qat` a quantized module becomes one of integers, with QuantizeLinear and DequantizeLinear.
        """
        if export_kwargs.pop("skip_input_quantize", False):
            raise OptionError("skip_input_quantize makes inputs of uint8, which no runtime but DeepSparse takes")
        sample, options = self._named(sample_batch, export_kwargs)
        options["opset_version"] = opset
        path = os.path.join(self._folder, name)
        make_folder(os.path.dirname(path))
        if stage_of(self._module) is None:
            self._write_plain(sample, path, options, disable_bn_fusing)
        elif convert_qat:
            export_quantized(self._module, sample, path, overwrite=True, **options)
        else:
            proto, unknown = fake_quantized(self._module, Inputs.of(sample), options)
            if unknown:
                warnings.warn(f"not all is quantized: no batch came to {', '.join(unknown[:3])}", stacklevel=2)
            _written(path, lambda file: onnx.save(proto, file))

    def _named(self, sample: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The sample as arguments by place, and the names and open axes that torch's exporter is told."""
        sample = _on_host(sample)
        options = dict(given)
        inputs = options.setdefault("input_names", names_of(sample, "input"))
        outputs = options.setdefault("output_names", self.get_output_names(self._called(sample)))
        axes = {one: dict(_by_number(some)) for one, some in dict(options.get("dynamic_axes") or {}).items()}
        for one in (*inputs, *outputs):
            axes.setdefault(one, {})[0] = "batch"
        options["dynamic_axes"] = axes
        return sample, options

    def _write_plain(self, sample: Any, path: str, options: dict[str, Any], keep_names: bool) -> None:
        if keep_names:
            options.setdefault("do_constant_folding", False)
            options.setdefault("training", torch().onnx.TrainingMode.PRESERVE)
        given = Inputs.of(sample)

        def write(file: Any) -> None:
            with exporting():
                asked = {"dynamo": False, **options}
                if PATTERNS not in self._module.__dict__:
                    torch().onnx.export(self._module, given.args, file, kwargs=dict(given.kwargs) or None, **asked)
                    return
                held = io.BytesIO()
                torch().onnx.export(self._module, given.args, held, kwargs=dict(given.kwargs) or None, **asked)
            model = Model.over(onnx.load_model_from_string(held.getvalue()))
            for said in record_zeros(model, self._module):
                LOG.warning("%s", said)
            file.write(model.take_proto().SerializeToString())

        try:
            _written(path, write)
        except (OptionError, OutputError):
            raise
        except Exception as error:  # whatever the exporter raises
            raise OutputError(f"torch cannot export the module to {path}: {one_line(error)[:200]}") from error

    def export_pytorch(
        self,
        optimizer: Any = None,
        recipe: str | None = None,
        epoch: int | None = None,
        name: str = CHECKPOINT,
        use_zipfile_serialization_if_available: bool = True,
        include_modifiers: bool = False,
        export_entire_model: bool = False,
        arch_key: str | None = None,
    ) -> None:
        """Write a checkpoint to the folder `training`: state_dict and, where they are given, optimizer, recipe, epoch.

        With `include_modifiers` the state of the optimizer's manager is in it, too.
        """
        state: Any = {"state_dict": self._module.state_dict()}
        given = {"recipe": recipe, "epoch": epoch, "arch_key": arch_key}
        state.update({key: value for key, value in given.items() if value is not None})
        if optimizer is not None:
            state["optimizer"] = optimizer.state_dict()
        manager = getattr(optimizer, "wrapped_manager", None) or getattr(optimizer, "manager", None)
        if include_modifiers and manager is not None:
            state["manager"] = manager.state_dict()
        path = os.path.join(self._folder, "training", name)
        make_folder(os.path.dirname(path))
        _written(path, lambda file: torch().save(self._module if export_entire_model else state, file))

    def export_torchscript(self, name: str = SCRIPT, sample_batch: Any = None) -> None:
        """Write the module to the folder `framework`: traced on a batch, or compiled where there is none."""
        path = os.path.join(self._folder, "framework", name)
        make_folder(os.path.dirname(path))
        script = torch().jit
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, that this format is old
            made = script.script(self._module) if sample_batch is None else script.trace(self._module, sample_batch)
            _written(path, lambda file: script.save(made, file))

    def export_samples(
        self,
        sample_batches: Sequence[Any],
        sample_labels: Sequence[Any] | None = None,
        sample_originals: Sequence[Any] | None = None,
        exp_counter: int = 0,
    ) -> None:
        """Write every sample, what the module makes of it, its label and its original, an .npz for each."""
        nothing = [None] * len(sample_batches)
        for batch, labels, originals in zip(sample_batches, sample_labels or nothing, sample_originals or nothing):
            batch = _on_host(batch)
            count = self._save("inp", batch, exp_counter)
            self._save("out", self._called(batch), exp_counter)
            for kind, some in (("lab", labels), ("orig", originals)):
                if some is not None:
                    self._save(kind, _on_host(some), exp_counter)
            exp_counter += count

    def _save(self, kind: str, batch: Any, first: int) -> int:
        folder = os.path.join(self._folder, FOLDERS[kind])
        make_folder(folder)
        samples = _apart(batch)
        for place, arrays in enumerate(samples):
            path = os.path.join(folder, f"{kind}-{first + place:04d}.npz")
            named = arrays if isinstance(arrays, dict) else {f"arr_{at}": one for at, one in enumerate(arrays)}
            _written(path, lambda file, named=named: np.savez(file, **named))
        return len(samples)

    def _called(self, sample: Any) -> Any:
        given = Inputs.of(sample)
        with torch().no_grad():
            return self._module(*given.args, **dict(given.kwargs))


def names_of(values: Any, what: str) -> Names:
    """A name for each tensor that goes in or comes out: its key, or its place where there are several."""
    if torch().is_tensor(values):
        return [what]
    if isinstance(values, Mapping):
        return [str(key) for key in values]
    return [f"{what}_{place}" for place, _ in enumerate(values)] if isinstance(values, Iterable) else [what]


def _by_number(axes: Any) -> Iterable[tuple[int, str]]:
    return axes.items() if isinstance(axes, Mapping) else ((axis, f"axis_{axis}") for axis in axes)


def _on_host(values: Any) -> Any:
    if torch().is_tensor(values):
        return values.detach().cpu()
    if isinstance(values, Mapping):
        return {key: _on_host(one) for key, one in values.items()}
    return tuple(_on_host(one) for one in values) if isinstance(values, (list, tuple)) else values


def _apart(batch: Any) -> list[Any]:
    """A batch as its samples: of each the arrays, by name where they have some."""
    if isinstance(batch, Mapping):
        arrays = {str(key): np.asarray(one) for key, one in batch.items()}
        return [{key: one[place] for key, one in arrays.items()} for place in range(_count(list(arrays.values())))]
    values = [np.asarray(one) for one in (batch if isinstance(batch, tuple) else (batch,))]
    return [[one[place] for one in values] for place in range(_count(values))]


def _count(values: Sequence[Any]) -> int:
    if not values or any(not one.ndim for one in values):
        raise OptionError("a batch of samples has tensors whose first axis counts the samples")
    return min(len(one) for one in values)


def _written(path: str, write: Any) -> None:
    """Beside its place, then renamed."""
    with Staged(True) as staged:
        with staged.create(path) as file:
            write(file)
        staged.commit()
