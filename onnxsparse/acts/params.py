"""Parameters of a model, and what the names in a recipe mean among them.

1. A name is that of a stored tensor, of a torch parameter, or of a layer, which means the weight of that layer; see
   `planning/names.py`. One that fits two layers is an error.
2. `re:` patterns are matched from the start of a name, as far as they go, against all names.
3. `__ALL__` is every parameter, `__ALL_PRUNABLE__` the weights of linear layers, convolutions and look-up tables; a
   list without entries means those, too. Both may stand among other entries.
4. What words for all and `re:` mean is passed over where it cannot be; what is named alone is refused there.
5. Entries that mean nothing are an error with the nearest known names.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnxsparse.errors import OptionError, nearest
from onnxsparse.math.param import Param as BareParam
from onnxsparse.math.param import View
from onnxsparse.math.values import Array
from onnxsparse.planning.names import Named, NamedWeights, module_path

ALL, ALL_PRUNABLE, REGULAR = "__ALL__", "__ALL_PRUNABLE__", "re:"
SECONDS = 2.0
WEIGHT = ".weight"
RENAMED = re.compile(r"onnx::\w+|_?val_\d+|const_fold_opt__\d+|\d+")
"""What exporters call a tensor of which they do not keep the name."""
WAY_OUT = (
    "`onnxsparse inspect -v` lists layers, which recipes may name; record_match keeps the names of torch in a file"
)
MOST = 20


@dataclass(frozen=True, eq=False)
class Param(BareParam):
    """One parameter with all that a recipe may call it; `numbers` are those that it begins with."""

    matrix: View | None = None
    restore: View | None = None
    numbers: Callable[[], Array] | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    prunable: bool = False
    refusal: str = ""
    """Why it cannot train; then it is none of those that are meant together, and named alone it is an error."""
    named: Named | None = None
    """What it answers to, where more is known than its names and layers."""

    @property
    def is_small(self) -> bool:
        """Whether it has one axis at most, as scales and biases have."""
        return self.matrix is None and not self.prunable and sum(side > 1 for side in self.shape) <= 1

    @cached_property
    def answers(self) -> Named:
        """Names of layers that a host gives are of one each; those that read it in a graph are told apart."""
        return self.named or Named(self.name, self.names, layers=self.layers, of=frozenset(filter(None, self.layers)))

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, *self.names, *self.layers)))


def is_renamed(param: Param) -> bool:
    """Whether nothing but its layer says which parameter it is."""
    return all(RENAMED.fullmatch(name) for name in (param.name, *param.names))


def find(params: Sequence[Param], wanted: str | Sequence[str] | None, where: str) -> list[Param]:
    """The parameters that the entries of a modifier mean, in the order of the model."""
    entries = [wanted] if isinstance(wanted, str) else list(wanted or (ALL_PRUNABLE,))
    found, unknown = find_some(params, entries, where)
    if unknown:
        raise OptionError(_nothing(params, unknown, where))
    return found


def find_some(params: Sequence[Param], entries: Sequence[str], where: str) -> tuple[list[Param], list[str]]:
    """The same, and the entries that mean nothing."""
    chosen = set[Param]()
    unknown, known = [], NamedWeights(param.answers for param in params)
    for entry in entries:
        found = _meant(params, known, entry, where)
        unknown += [] if found else [entry]
        chosen.update(found)
    return [param for param in params if param in chosen], unknown


def named(params: Sequence[Param], wanted: str | Sequence[str] | None, where: str) -> set[str]:
    """The tags of those that entries mean by their own name, and not together with others."""
    entries = [wanted] if isinstance(wanted, str) else list(wanted or ())
    own = [one for one in entries if one.upper() not in (ALL, ALL_PRUNABLE) and not one.startswith(REGULAR)]
    return {param.tag for param in find(params, own, where)} if own else set()


def _meant(params: Sequence[Param], known: NamedWeights, entry: str, where: str) -> list[Param]:
    free = [param for param in params if not param.refusal]
    if entry.upper() == ALL:
        return free
    if entry.upper() == ALL_PRUNABLE:
        return [param for param in free if param.prunable]
    if entry.startswith(REGULAR):
        matches = _matcher(entry[len(REGULAR) :], where)
        return [param for param in free if any(matches(name) for name in param.all_names)]
    way_out = f", or all by `{REGULAR}`"
    found = [params[place] for place in known.meant(entry, f"{where}:", way_out)]
    for param in found:
        if param.refusal:
            raise OptionError(f"{where}: {entry[:80]!r} cannot train: {param.refusal}")
    return found


def _matcher(text: str, where: str) -> Callable[[str], bool]:
    pattern = compiled(text, where)

    def matches(name: str) -> bool:
        try:
            return pattern.match(name, timeout=SECONDS) is not None
        except TimeoutError:
            raise OptionError(
                f"{where}: re:{' '.join(text[:60].splitlines())} takes too long to match; write a simpler expression"
            ) from None

    return matches


def compiled(text: str, where: str) -> Any:
    """The regular expression that a text is, or an error that says what is wrong with it."""
    # The standard library's `re` cannot be stopped: a pattern such as (a+)+b would hang a run on a long name.
    regex: Any = importlib.import_module("regex")
    try:
        return regex.compile(text)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        hint = "; any text is `.*`" if text.startswith("*") else ""
        shown = " ".join(text[:60].splitlines())
        raise OptionError(f"{where}: re:{shown} is no regular expression: {error}{hint}") from None


def _nothing(params: Sequence[Param], entries: Sequence[str], where: str) -> str:
    if any(entry.upper() == ALL_PRUNABLE for entry in entries):
        return (
            f"{where}: the model has nothing that {ALL_PRUNABLE} means: no linear layer, convolution or look-up table"
        )
    renamed = [param.name for param in params if param.prunable and is_renamed(param)]
    told = [f"{entry[:80]!r} is no parameter or layer of the model{_near(params, entry)}" for entry in entries[:MOST]]
    more = [f"and {len(entries) - MOST} more"] if len(entries) > MOST else []
    hint = [f"the exporter renamed some weights ({len(renamed)}, such as {renamed[0]}): {WAY_OUT}"] if renamed else []
    return f"{where}: {'; '.join([*told, *more, *hint])}"


def _near(params: Sequence[Param], entry: str) -> str:
    """The nearest names; of a weight that was renamed the path of its layer."""
    known: list[str] = []
    for param in params:
        own = [path for path in map(module_path, param.layers) if path] if is_renamed(param) else []
        known += [min(own, key=len) + WEIGHT] if own and entry.endswith(WEIGHT) else [*param.all_names, *own]
    return nearest(entry, dict.fromkeys(known))
