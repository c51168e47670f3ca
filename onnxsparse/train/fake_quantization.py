"""Scales of a training with fake quantization: observed, held, learned, kept of the best state, and delivered.

1. Scales and zero points are live arrays of the engine. Those of a weight follow its largest number behind the mask,
   before each step; those of a value follow a moving average of the least and the greatest number of each batch.
2. The first ranges come from the network as it is, run on some samples before the first step that rounds.
3. Once observing has stopped all stand still, unless they learn: then they are only begun with what was observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxsparse.acts import weights
from onnxsparse.engines.engine import DivergedError, Engine
from onnxsparse.engines.fake_quantization import SCALE, ZERO_POINT
from onnxsparse.graph.model import Model
from onnxsparse.math.quantization import SMALLEST_SCALE, Grid, QParams, from_range, of_weight
from onnxsparse.math.values import Array
from onnxsparse.passes.quantization.fake_quantize import keys_of
from onnxsparse.passes.quantization.qdq import Params, fitted, stored, write_qdq
from onnxsparse.passes.quantization.report import how, layers_left, saturation_note, with_reasons
from onnxsparse.passes.quantization.weight_only import raised
from onnxsparse.passes.quantization.zero_points import Zeros, demand_zeros, zeros_of
from onnxsparse.passes.verify import of_integers
from onnxsparse.planning.quantization import Quantization, QuantizedWeight
from onnxsparse.planning.recorded import PREFIX
from onnxsparse.planning.stored_params import StoredParam
from onnxsparse.report.rows import Report

AVERAGING = 0.01
"""How far a range goes towards that of a batch."""
SHOWN = 6
"""Layers that are named in the report, of those that are left in float."""
SLOWER = 0.1
"""The rate of a learned scale, as a share of that of the weights: all numbers of a tensor hang on it."""
Ranges = Mapping[str, tuple[float, float]]


class FakeQuantization:
    """Of one trainee. `dense` is the float graph that it trains, `tags` are those of its stored tensors by name;
    `calibrate` gives the ranges of values, by name, of the network as an engine has it."""

    def __init__(
        self,
        quantization: Quantization,
        dense: ModelProto,
        tags: Mapping[str, str],
        calibrate: Callable[[Engine, Sequence[str]], Ranges],
        learned: bool = False,
    ) -> None:
        self.quantization, self.learned = quantization, learned
        self.text = quantization.to_json()
        """What the training graph is asked for by."""
        self.dense, self._tags, self._calibrate = dense, tags, calibrate
        self._keys = keys_of(quantization)
        self._ranges: dict[str, tuple[float, float]] = {}
        self._observing = False

    # -- while it trains

    def begin(self, engine: Engine) -> None:
        """Scales of the network as it is."""
        self._ranges = dict(self._calibrate(engine, [value.name for value in self.quantization.observed]))
        for name, ends in self._ranges.items():
            if not np.isfinite(ends).all():
                raise DivergedError(f"the value '{name}' is NaN or infinite where the rounding begins")
        self._observing = True
        self._write_values(engine)
        self._write_weights(engine)
        self._observing = not self.learned

    def stop(self) -> None:
        self._observing = False

    def before_step(self, engine: Engine) -> None:
        """Weights and masks may have changed."""
        if self._observing:
            self._write_weights(engine)

    def after_step(self, engine: Engine) -> None:
        """A batch was seen, and what learns has moved."""
        if self._observing:
            for value in self.quantization.observed:
                if self._keys[value.name] in engine.ranges:
                    self._follow(value.name, *engine.ranges[self._keys[value.name]])
            self._write_values(engine)
        for key in self.scales(engine) if self.learned else ():
            np.maximum(engine.weights[key], np.float32(SMALLEST_SCALE), out=engine.weights[key])

    def rates(self, engine: Engine, rate: float) -> dict[str, float]:
        """The rates of scales that learn."""
        return dict.fromkeys(self.scales(engine), rate * SLOWER) if self.learned else {}

    def scales(self, engine: Engine) -> list[str]:
        """The live arrays of all scales that the training graph has."""
        wanted = [f"{key}/{SCALE}" for key in self._keys.values()]
        return [key for key in wanted if key in engine.weights or key in engine.frozen]

    def _follow(self, name: str, low: float, high: float) -> None:
        before = self._ranges[name]
        self._ranges[name] = before[0] + AVERAGING * (low - before[0]), before[1] + AVERAGING * (high - before[1])

    def _write_values(self, engine: Engine) -> None:
        for value in self.quantization.observed:
            self._write(engine, value.name, from_range(*self._ranges[value.name], value.grid))

    def _write_weights(self, engine: Engine) -> None:
        for weight in self.quantization.weights:
            self._write(engine, weight.name, self._of_weight(engine, weight))

    def _of_weight(self, engine: Engine, weight: QuantizedWeight) -> QParams:
        tag = self._tags.get(weight.name, "")
        numbers = weights.baked(engine, tag) if tag in engine.weights else stored(self.dense, weight.name)
        return of_weight(numbers, weight.grid, weight.axis)

    def _write(self, engine: Engine, name: str, params: QParams) -> None:
        for role, numbers in ((SCALE, params.scale), (ZERO_POINT, params.zero_point)):
            array = _live(engine, f"{self._keys[name]}/{role}")
            if array is not None:
                array[...] = (numbers if role == SCALE or numbers.size == 1 else numbers.flat[0]).reshape(array.shape)

    # -- what is kept and delivered

    def arrays(self, engine: Engine) -> dict[str, Array]:
        """Copies of all scales and zero points, by key."""
        keys = [f"{key}/{role}" for key in self._keys.values() for role in (SCALE, ZERO_POINT)]
        found = ((key, _live(engine, key)) for key in keys)
        return {key: array.copy() for key, array in found if array is not None}

    def params(self, arrays: Mapping[str, Array], proto: ModelProto) -> Params:
        """Scales and zero points for a float graph with trained weights, by what was kept.

        What the training graph did not have, because it was cut, is rounded by its numbers and its first range.
        """
        found: dict[str, QParams] = {}
        for weight in self.quantization.weights:
            known, numbers = self._known(arrays, weight.name, weight.grid, weight.axis), stored(proto, weight.name)
            whole = known is not None and (weight.axis is None or known.scale.size == numbers.shape[weight.axis])
            found[weight.name] = known if known and whole else of_weight(numbers, weight.grid, weight.axis)
        for value in self.quantization.observed:
            known = self._known(arrays, value.name, value.grid)
            found[value.name] = known or from_range(*self._ranges[value.name], value.grid)
        return fitted(proto, self.quantization, found)

    def _known(self, arrays: Mapping[str, Array], name: str, grid: Grid, axis: int | None = None) -> QParams | None:
        scale = arrays.get(f"{self._keys[name]}/{SCALE}")
        if scale is None:
            return None
        flat = scale.reshape(-1) if axis is not None else scale.reshape(())
        zero_point = np.full(flat.shape, arrays[f"{self._keys[name]}/{ZERO_POINT}"], np.int32)
        return QParams(flat.copy(), zero_point, grid, axis)

    # -- what a checkpoint holds beside the engine's arrays

    def state(self) -> dict[str, Any]:
        return {"ranges": self._ranges, "observing": self._observing}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._ranges = {name: (float(low), float(high)) for name, (low, high) in state["ranges"].items()}
        self._observing = bool(state["observing"])


class Integers:
    """A float graph with trained weights becomes integers, and is held to its zeros once it is written."""

    def __init__(self, fake: FakeQuantization, scales: Mapping[str, Array]) -> None:
        self._fake, self._scales = fake, scales
        self._params: Params = {}
        self._zeros: Zeros = {}

    @property
    def quantization(self) -> Quantization:
        return self._fake.quantization

    @property
    def notes(self) -> list[str]:
        """What is integers, and what is not and why."""
        names, found = {one.name for one in self.quantization.weights}, self.quantization
        kinds = sorted({one.grid.text for one in found.weights})
        own = (
            f"trained with rounded numbers: {len(names)} weights are {', '.join(kinds)}, and {len(found.values)} "
            "values are rounded between layers"
        )
        floats = layers_left(Model.over(self._fake.dense), found)
        left = [f"left in float: '{name}' ({reason})" for name, reason in floats.items()]
        more = [f"{len(left) - SHOWN} more are left in float"] if len(left) > SHOWN else []
        return [own, *left[:SHOWN], *more, *saturation_note(any(not one.grid.signed for one in found.values))]

    def write(self, proto: ModelProto) -> Sequence[str]:
        """In place; what has to be said of it is in `notes`."""
        self._params = self._fake.params(self._scales, proto)
        self._zeros = zeros_of(proto, self.quantization.weights)
        raised(proto, self.quantization)
        write_qdq(proto, self.quantization, self._params)
        Model.over(proto).set_metadata({PREFIX + "quantization": "int8, trained"})
        return ()

    def check(self, report: Report, written: Model) -> Report:
        """Every zero is the zero point in what was written; and what is reported is of that, not of the floats."""
        demand_zeros(written, self.quantization.weights, self._params, self._zeros)
        own = {weight.name: how(weight) for weight in self.quantization.weights}
        names = {weight.name: weight.tensor.name for weight in written.weights}
        rows = tuple(replace(row, quantized=own.get(names.get(row.name, ""), "")) for row in report.rows)
        rows = with_reasons(rows, written.weights, written.proto, self.quantization.left)
        return of_integers(replace(report, rows=rows), written)


def tags_by_name(model: Model, tags: Mapping[str, StoredParam]) -> dict[str, str]:
    """The tags of what trains, by the names of initializers."""
    homes = model.flow.stores.homes
    return {one.tensor.name: tag for tag, one in tags.items() if not homes[one.tensor].scope}


def _live(engine: Engine, key: str) -> Array | None:
    return engine.weights[key] if key in engine.weights else engine.frozen.get(key)
