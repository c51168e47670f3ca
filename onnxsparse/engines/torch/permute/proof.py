"""The proof that moves leave the outputs of a module as they are, on a copy of it.

1. The copy is in double precision where that runs. It gets the inputs of the caller, or those that were guessed, and
   random ones of the same shapes, also twice as many. Numbers of it that are all equal become random: what is moved
   behind a scale of zeros shows too. Nothing of the module itself is run or changed.
2. What a module computes in training may be something else: the copy is run in training mode, too, but for layers of
   torch, and without dropout. Where it draws other numbers there nothing can be compared; that counts where the graph
   in eval mode did not meet a parameter.
3. A graph has one branch of an `if` that asks the data. The copy is run along the other branches, too.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from onnxsparse.engines.torch.library import attention_in_parts, torch
from onnxsparse.engines.torch.permute.decisions import MOST_WAYS, Decisions, Way, leaves
from onnxsparse.engines.torch.permute.moves import Moving, move, tensors_of
from onnxsparse.errors import OptionError, one_line

CLOSE = {"float64": 1e-7, "float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
"""How far outputs may be apart, as a part of their range, by the lowest precision that is computed with."""
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_")


class UnprovenError(Exception):
    """Why nothing can be found or proven of a module, in one line."""


class Trial:
    """A copy of a module, what it gives for some inputs, and whether moves leave that as it is."""

    def __init__(self, module: Any, inputs: Inputs, *more: Inputs) -> None:
        self._devices = sorted({one.device.index or 0 for one in tensors_of(module).values() if one.is_cuda})
        self.subject, self._runs = self._first_that_runs(module, inputs, more)
        self._before = [self._outputs(run) for run in self._runs]
        self._modes: list[bool] = [False] * len(self._runs)
        self._ways: list[Way] = [()] * len(self._runs)
        self._branch()

    def _first_that_runs(self, module: Any, inputs: Inputs, more: Sequence[Inputs]) -> tuple[Any, list[Inputs]]:
        reason = ""
        own = next((one.dtype for one in module.parameters() if one.is_floating_point()), torch().float32)
        for dtype, varied in itertools.product(dict.fromkeys((torch().float64, torch().float32, own)), (True, False)):
            self.subject = copied(module, dtype)
            if varied:
                _vary(self.subject)
            self._state = [(one, one.clone()) for one in self.subject.buffers()]
            given = inputs.cast(dtype, _device(module))
            kinds: set[str] = set()
            try:
                with _recorded(kinds):
                    before = self._outputs(given)
            except Exception as error:  # whatever a user's module raises
                reason = reason or f"it does not run on these inputs: {type(error).__name__}: {one_line(error)[:200]}"
                continue
            if not any(_finite(one) and one.numel() for one in before):
                reason = reason or "its outputs are no tensors of finite numbers"
                continue
            self._close = max(CLOSE.get(kind, 0.0) for kind in {*kinds, str(dtype).partition(".")[2]})
            others = [one.cast(dtype, _device(module)) for one in more]
            return self.subject, [given, *self._that_run([given.random(), *(others or [given.random().doubled()])])]
        raise UnprovenError(reason)

    def _that_run(self, others: Iterable[Inputs]) -> list[Inputs]:
        found = []
        for one in others:
            try:
                if all(map(_finite, self._outputs(one))):
                    found.append(one)
            except Exception:  # noqa: S112 - inputs of our own, which the module need not take
                continue
        return found

    def train_too(self, at_random: bool) -> None:
        """Have the copy run in training mode, too, as far as it does that; where it draws numbers, on demand.

        Numbers that are drawn for each place of a tensor are another channel's after a permutation.
        """
        for run in dict.fromkeys((self._runs[0], self._runs[self._modes.count(False) - 1])):
            try:
                before = self._outputs(run, True)
                if at_random or self._alike(self._outputs(run, True, seed=1), before):
                    self._add(run, True, (), before)
            except Exception:  # noqa: S112 - such as a batch normalization of a single value
                continue

    def shows(self, names: Collection[str]) -> bool:
        """Whether the outputs depend on these tensors at all."""
        held = [(one, one.clone()) for name, one in tensors_of(self.subject).items() if name in names]
        generator = torch().Generator().manual_seed(3)
        try:
            for one, numbers in held:
                if one.is_floating_point():
                    one.copy_(numbers * (0.5 + torch().rand(numbers.shape, generator=generator)).to(numbers))
            self._state = [(one, one.clone()) for one in self.subject.buffers()]
            return not all(self._alike(self._outputs(run), one) for run, one in zip(self._runs, self._before))
        except Exception:
            return True
        finally:
            for one, numbers in held:
                one.copy_(numbers)
            self._state = [(one, one.clone()) for one in self.subject.buffers()]

    def _branch(self) -> None:
        """Run along the other answers of what the module asks its data, as far as it runs there."""
        for run in self._runs[:2]:
            waiting: list[Way] = [()]
            for way in waiting:
                answers, before = self._answers(run, way)
                waiting += [(*answers[:at], not answers[at]) for at in range(len(way), len(answers))]
                if len(waiting) > MOST_WAYS:
                    raise UnprovenError(f"its data decide more than {MOST_WAYS} ways that it may take")
                if way and before:
                    self._add(run, False, way, before)

    def _answers(self, run: Inputs, way: Way) -> tuple[Way, list[Any]]:
        decisions = Decisions(run, way)
        try:
            before = self._outputs(run, decisions=decisions)
        except Exception:  # such as a check of the inputs, or a way that they do not fit
            before = []
        if decisions.number:
            raise UnprovenError(f"its Python code reads numbers of its data, by {decisions.number}")
        return tuple(decisions.answers), before

    def _add(self, run: Inputs, mode: bool, way: Way, before: list[Any]) -> None:
        self._runs, self._modes = [*self._runs, run], [*self._modes, mode]
        self._ways, self._before = [*self._ways, way], [*self._before, before]

    def holds(self, movings: Sequence[Moving]) -> bool:
        """Whether the outputs are the same after these moves; the copy is as it was then."""
        move(self.subject, movings)
        self._state = [(one, one.clone()) for one in self.subject.buffers()]
        try:
            runs = zip(self._runs, self._modes, self._ways, self._before)
            return all(
                self._alike(self._outputs(run, mode, Decisions(run, way) if way else None), before)
                for run, mode, way, before in runs
            )
        except Exception:
            return False
        finally:
            move(self.subject, [one.inverse() for one in movings])
            self._state = [(one, one.clone()) for one in self.subject.buffers()]

    def repeats(self) -> bool:
        """Whether the module gives the same outputs twice."""
        return self.holds(())

    def _alike(self, now: Sequence[Any], before: Sequence[Any]) -> bool:
        return len(now) == len(before) and all(_near(a, b, self._close) for a, b in zip(now, before))

    def _outputs(
        self, inputs: Inputs, training: bool = False, decisions: Decisions | None = None, seed: int = 0
    ) -> list[Any]:
        self.subject.train(training)
        for part in self.subject.modules() if training else ():
            if type(part).__module__.startswith("torch.nn."):  # these treat all channels alike, or drop them at random
                part.training = False
        with (
            torch().no_grad(),
            torch().random.fork_rng(self._devices),
            warnings.catch_warnings(),
            attention_in_parts(),
            _without_dropout(),
            contextlib.nullcontext() if decisions is None else decisions.followed(),
        ):
            warnings.simplefilter("ignore")
            torch().manual_seed(seed)
            try:
                found = [one.detach().clone() for one in leaves(inputs.call(self.subject)) if torch().is_tensor(one)]
            finally:
                self.subject.eval()
                for tensor, numbers in self._state:
                    tensor.copy_(numbers)
        return found


def copied(module: Any, dtype: Any = None) -> Any:
    """A copy in eval mode, floats in another precision."""
    computed = {id(one): one.detach().clone() for part in module.modules() for one in _computed(part)}
    try:
        made = copy.deepcopy(module, computed)
    except Exception as error:  # whatever a user's module raises
        raise UnprovenError(f"it cannot be copied: {type(error).__name__}: {one_line(error)[:200]}") from error
    try:
        made = made if dtype is None else made.to(dtype)
    except Exception as error:  # a device without doubles
        raise UnprovenError(f"it has no copy in {dtype}: {one_line(error)[:200]}") from error
    return made.requires_grad_(False).eval()


def _computed(part: Any) -> Iterator[Any]:
    """What a part computed and keeps, as torch.nn.utils.prune does: torch copies no such tensor."""
    yield from (one for one in vars(part).values() if torch().is_tensor(one) and one.grad_fn is not None)


def _vary(module: Any) -> None:
    """Random numbers where all are equal, as the scales of a new network are: behind zeros nothing would be seen."""
    generator = torch().Generator().manual_seed(2)
    for one in tensors_of(module).values():
        if one.is_floating_point() and one.numel() > 1 and bool((one == one.flatten()[0]).all()):
            one.copy_(torch().rand(one.shape, generator=generator) + 0.5)


def _device(module: Any) -> Any:
    return next((one.device for one in tensors_of(module).values()), torch().device("cpu"))


def _finite(tensor: Any) -> bool:
    return bool(torch().isfinite(tensor).all()) if tensor.is_floating_point() else True


def _near(one: Any, other: Any, close: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point() or not one.numel():
        return bool(torch().equal(one, other))
    close = max(close, CLOSE.get(str(one.dtype).partition(".")[2], close))
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    reach = float(other[torch().isfinite(other)].abs().max()) if torch().isfinite(other).any() else 0.0
    return bool((same | ((one - other).abs() <= close * max(reach, 1e-30))).all())


@contextmanager
def _recorded(kinds: set[str]) -> Iterator[None]:
    """Which types of floats are computed with: a layer may compute in single precision whatever it is given."""
    dispatch = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Recording(dispatch):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = function(*args, **(kwargs or {}))
            found = [one for one in leaves(made) if torch().is_tensor(one) and one.is_floating_point()]
            kinds.update(str(one.dtype).partition(".")[2] for one in found if one.numel() > 1)
            return made

    with Recording():
        yield


@contextmanager
def _without_dropout() -> Iterator[None]:
    """What is dropped at random is dropped by its place, which is another channel's after a permutation."""
    functions = {getattr(torch().nn.functional, name) for name in _DROPOUTS if hasattr(torch().nn.functional, name)}
    functions |= {getattr(torch(), name) for name in _DROPOUTS if hasattr(torch(), name)}

    class NoDropout(torch().overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in functions:
                return args[0] if args else (kwargs or {})["input"]
            if function is torch().nn.functional.scaled_dot_product_attention:
                args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**(kwargs or {})}
                kwargs.update({"dropout_p": 0.0} if "dropout_p" in kwargs else {})
            return function(*args, **(kwargs or {}))

    with NoDropout():
        yield


# -- what a module is called with


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a module is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """A tensor, a tuple or list of arguments, or a dictionary of named ones."""
        if isinstance(given, Mapping):
            if not all(isinstance(name, str) for name in given):
                raise OptionError("example_inputs as a dictionary has the names of forward's arguments")
            return cls((), dict(given)).with_numbers()
        found = cls(tuple(given) if isinstance(given, (tuple, list)) else (given,))
        if not any(torch().is_tensor(one) for one in leaves(found.args)):
            raise OptionError(
                "example_inputs is a tensor, a tuple of forward's arguments, or a dictionary of named ones, with a "
                f"tensor in it; not {one_line(type(given).__name__)}"
            )
        return found.with_numbers()

    def with_numbers(self) -> Inputs:
        if any(torch().is_tensor(one) and one.is_meta for one in leaves((self.args, self.kwargs))):
            raise OptionError("example_inputs has no numbers, it is on the device meta")
        return self

    def call(self, module: Any) -> Any:
        return module(*self.args, **self.kwargs)

    def mapped(self, function: Callable[[Any], Any]) -> Inputs:
        tree = torch().utils._pytree.tree_map
        return Inputs(tree(function, self.args), tree(function, dict(self.kwargs)))

    def cast(self, dtype: Any, device: Any) -> Inputs:
        def made(one: Any) -> Any:
            if not torch().is_tensor(one):
                return one
            return one.detach().to(device, dtype if one.is_floating_point() else one.dtype, copy=True)

        return self.mapped(made)

    def random(self) -> Inputs:
        """Normal numbers in place of all floats."""
        generator = torch().Generator().manual_seed(1)

        def made(one: Any) -> Any:
            if not torch().is_tensor(one) or not one.is_floating_point():
                return one
            return torch().randn(one.shape, generator=generator, dtype=torch().float64).to(one.device, one.dtype)

        return self.mapped(made)

    def doubled(self) -> Inputs:
        """Twice as many along the first axis."""

        def made(one: Any) -> Any:
            return torch().cat([one, one.flip(0)]) if torch().is_tensor(one) and one.dim() else one

        return self.mapped(made)


__all__ = ["Inputs", "Trial", "UnprovenError", "copied", "leaves"]
