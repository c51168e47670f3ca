"""Report rows and totals from planned or checked weights, and what is said of them in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from onnxsparse.graph.biases_and_scales import training_mode
from onnxsparse.graph.model import Model
from onnxsparse.graph.weights import Use, Weight
from onnxsparse.patterns import Pattern
from onnxsparse.patterns.nm import NOfM
from onnxsparse.planning import macs
from onnxsparse.planning.layers import bound_of, counts, wasted
from onnxsparse.planning.plan import Plan, PlanRow
from onnxsparse.planning.rule import Rule
from onnxsparse.report.rows import DENSE, NOTHING, Report, Row, Totals, UseRow
from onnxsparse.targets import Target, Verdict

# -- rows and sums


def plain_row(weight: Weight, status: str) -> Row:
    """What is known of a weight before anything is done to it."""
    return Row(
        name=weight.name,
        scope=weight.scope,
        shape=weight.shape,
        dtype=weight.tensor.kind,
        storage="external data" if weight.tensor.external else weight.storage,
        status=status,
        size=weight.tensor.size,
        uses=tuple(map(use_row, weight.uses)),
        masked=any(use.masks for use in weight.uses),
        others=others_of(weight),
        bytes_dense=weight.tensor.nbytes,
        bytes_sparse=weight.tensor.nbytes,
    )


def use_row(use: Use) -> UseRow:
    group, out, reduce, _ = use.runs
    return UseRow(
        op=use.op,
        node=use.node,
        slot=use.slot,
        reduction=use.stored_axes(reduce),
        out=use.stored_axes(out),
        groups=use.shape4[0] if group else 1,
        matrix=use.shape4,
    )


def planned_row(row: PlanRow, status: str, target: Target | None = None) -> Row:
    """One row of a plan, as `plan`, `prune` and `mask` show it."""
    plain = plain_row(row.weight, status if row.pattern else DENSE)
    if row.pattern is None:
        return replace(plain, reason=row.reason, advice=row.advice, words=row.words)
    dropped = dropped_elements(row.pattern, row.use.shape4, row.drop)
    ragged = f"{row.ragged} of its {plain.size} numbers lie outside whole units of {row.pattern.text} and stay dense"
    reasons = [row.reason, ragged if row.ragged else "", moves(plain.others)]
    uses = plain.uses
    if target is not None:
        uses = tuple(judged(one, target.judge(row.weight, use)) for one, use in zip(uses, row.weight.uses))
    made = replace(plain, pattern=row.pattern.text, dropped=dropped, ragged=row.ragged, uses=uses)
    return compressed(replace(made, reason="; ".join(filter(None, reasons))), row.pattern, dropped)


def judged(row: UseRow, verdict: Verdict) -> UseRow:
    pays = verdict.pays and not verdict.refusal
    return replace(row, may_use=not verdict.refusal, pays=pays, remark=verdict.refusal or verdict.remark)


def dropped_elements(pattern: Pattern, shape4: tuple[int, ...], drop: int) -> int:
    """Elements that go; N:M counts them already."""
    return drop if not pattern.takes_sparsity else pattern.dropped(shape4, drop)


def compressed(row: Row, pattern: Pattern | None, zeros: int) -> Row:
    shape4 = row.uses[0].matrix if row.uses else row.shape
    return replace(row, bytes_sparse=sparse_bytes(pattern, shape4, row.size, zeros, row.bytes_dense))


def totals_of(rows: Sequence[Row], model: Model, done: Iterable[str], sized: bool = True) -> Totals:
    """Sums over the rows; of multiply-accumulates only where the sizes of all layers are known (`sized`).

    A row of which a plan takes no number (0 %) is done with, and not counted as done.
    """
    wanted = set(done)
    return Totals(
        weights=len(rows),
        done=sum(row.status in wanted and row.dropped != 0 for row in rows),
        elements=sum(row.size for row in rows),
        zeros=sum(_zeros(row) for row in rows),
        bytes_dense=sum(row.bytes_dense for row in rows),
        bytes_sparse=sum(row.bytes_sparse for row in rows),
        file_bytes=model.file_size,
        macs=(sized and sum(row.macs or 0 for row in rows)) or None,
        macs_left=(sized and sum(_macs_left(row) for row in rows)) or None,
    )


def _zeros(row: Row) -> int:
    return row.zeros if row.zeros is not None else row.dropped or 0


def _macs_left(row: Row) -> int:
    return round((row.macs or 0) * (1 - _zeros(row) / row.size)) if row.size else 0


def with_macs(rows: Sequence[Row], weights: Sequence[Weight], model: Model) -> tuple[list[Row], bool]:
    """Rows with their multiply-accumulates, and whether those of all layers are known."""
    counts, sized = macs.of_weights(model, list(weights))
    return [replace(row, macs=counts.get(weight)) for row, weight in zip(rows, weights)], sized


def planned_report(
    command: str, called: str, made: Plan, model: Model, notes: Sequence[str], output: str | None, prunes: bool = True
) -> Report:
    """The report of `plan`, `prune` and `mask`; what `prunes` and prunes nothing is told so."""
    done = {"plan": "planned", "prune": "pruned", "mask": "masked"}[command]
    found = [planned_row(row, done, made.rule.target) for row in made.rows]
    rows, sized = with_macs(found, [row.weight for row in made.rows], model)
    rows = [_with_bound(row, one.weight, made.rule) for row, one in zip(rows, made.rows)]
    remarks = [
        *notes,
        *of_one_run(model, rows),
        *unknown_sizes(model, rows, [one.weight for one in made.rows]),
        *target_notes(made.rule, rows),
        *_nearly_empty(rows),
        *_of_network(made),
        *_of_ties(made),
    ]
    if not made.planned and prunes:
        why = "every weight stays dense, see the reasons" if rows else "the model has no weights"
        remarks.append(f"{NOTHING}: {why}")
    totals = totals_of(rows, model, {done}, sized)
    title = made.rule.text if made.rule.pattern else "the plan"
    used = [row.weight for row in made.planned]
    step = next_step(made.rule, output or "OUT", used) if command == "prune" and used else ""
    notes, verdict = tuple(remarks), pays_off(rows, done, made.rule)
    return Report(command, called, title, tuple(rows), totals, True, output or "", notes, step, verdict=verdict)


def _with_bound(row: Row, weight: Weight, rule: Rule) -> Row:
    """What the device can use of a layer's zeros, where it says so."""
    bound = bound_of(weight, rule.target)
    return replace(row, target_density=bound, wasted=wasted(_zeros(row), row.size, bound))


def _of_ties(made: Plan) -> list[str]:
    tied = [row for row in made.planned if row.tied is not None]
    if not tied:
        return []
    leads, several = (
        tied[0].tied,
        f"{len(tied)} weights are copies of others" if len(tied) > 1 else "1 weight is a copy",
    )
    first = f"'{tied[0].name}' is that of '{leads.name if leads else ''}'"
    return [f"{several} ({first}): they have the same masks, and count once where a share is spread"]


def _of_network(made: Plan) -> list[str]:
    """How near the network comes to its level."""
    if not made.rule.knows_levels or made.rule.sparsity is None:
        return []
    layers = [row for row in made.rows if row.tied is None and counts(row.weight)]
    size, gone = sum(row.weight.tensor.size for row in layers), sum(row.drop for row in layers)
    share, level, target = gone / max(size, 1), made.rule.sparsity, made.rule.target
    said = f"network sparsity {100 * share:.2f} %, level {100 * level:g} %"
    if target is None or target.tolerance is None or abs(share - level) <= target.tolerance:
        return [said]
    return [f"{said}: out of reach, with these limits and exclusions"]


def in_training(model: Model) -> list[str]:
    """What is said of a file that was exported as it trained."""
    said = training_mode(model)
    note = (
        f"the file was exported in training mode ({said}): it normalizes by whatever batch it is given, and drops at "
        "random, wherever it runs; export it again after .eval()"
    )
    return [note] if said else []


def of_one_run(model: Model, rows: Sequence[Row]) -> list[str]:
    """A file that fixes its batch counts all samples of it."""
    batch = macs.fixed_batch(model)
    if batch == 1 or not any(row.macs for row in rows):
        return []
    return [f"multiply-accumulates are of one run, in which the file takes {batch} at once: for one, divide by {batch}"]


def target_notes(rule: Rule, rows: Sequence[Row]) -> list[str]:
    note = rule.target.note({row.dtype for row in rows if row.pattern != DENSE}) if rule.target else ""
    return [note] if note else []


def next_step(rule: Rule, path: str, weights: Sequence[Weight]) -> str:
    quantized = any(op.endswith("uantizeLinear") for weight in weights for use in weight.uses for op in use.crossed)
    return rule.target.next_step(path, quantized) if rule.target else ""


def _nearly_empty(rows: Sequence[Row]) -> list[str]:
    """A weight with hardly a number left stops what flows through it."""
    found = [row for row in rows if row.pattern != DENSE and row.size - _zeros(row) < row.size / 100]
    if not found:
        return []
    if len(found) == 1:
        return [f"'{found[0].name}' may be dead: it keeps less than 1 % of its numbers"]
    return [f"{len(found)} layers may be dead: they keep less than 1 % of their numbers (the first: '{found[0].name}')"]


# -- What is said of a report's rows in words: what a size that is not known costs, whether zeros pay, what they move.
#
# 1. Multiply-accumulates are left out where a size is not known. Which `--dim` would give them is tried out, not
#    guessed.
# 2. Whether zeros pay is the target's word on every use; here it becomes one sentence.
# 3. A weight may be read by more than layers. That is allowed, and said: what comes out there moves with the zeros.


MOST_DIMS, MOST_OTHERS = 6, 3
ANY_SIZE = 512
"""A size to try: below it kernels of audio models do not fit."""


def unknown_sizes(model: Model, rows: Sequence[Row], weights: Sequence[Weight]) -> list[str]:
    """Why there are no multiply-accumulates, and what would give them."""
    pairs = [(row, weight) for row, weight in zip(rows, weights) if row.macs is None and _works(weight)]
    if not pairs:
        return []
    recurrent = any(use.family == "Recurrent" for _, weight in pairs for use in weight.uses)
    dims = macs.open_dims_of(model, samples=recurrent)
    found = _with_sizes(model, dims, [weight for _, weight in pairs])
    lost = [row for row, weight in pairs if weight not in found]
    reason = (
        f"sizes behind {len(lost)} of {len(rows)} weights cannot be inferred (the first: '{lost[0].name}')"
        if lost
        else ""
    )
    if found:
        given = ",".join(f"{name}=SIZE" for name in dims[:MOST_DIMS])
        more = f" and {len(dims) - MOST_DIMS} more" if len(dims) > MOST_DIMS else ""
        gives = (
            "would give them" if not lost else f"would give those of {len(found)} weights, in the JSON alone: {reason}"
        )
        what = "the size of a dimension is" if len(dims) == 1 else "sizes of dimensions are"
        reason = f"{what} not known; --dim {given}{more} {gives}"
    return [f"multiply-accumulates are left out: {reason}"]


def _works(weight: Weight) -> bool:
    """Whether anything multiplies with it: a table is looked up."""
    return any(use.family != "Embedding" for use in weight.uses)


def _with_sizes(model: Model, dims: Sequence[str], weights: list[Weight]) -> dict[Weight, int]:
    """What could be counted if these dimensions had a size."""
    if not dims:
        return {}
    before = dict(model.sizes)
    model.sizes.update(dict.fromkeys(dims, ANY_SIZE))
    found = macs.counted(model, weights, deep=True)
    model.sizes.clear()
    model.sizes.update(before)
    return found


def pays_off(rows: Sequence[Row], done: str, rule: Rule) -> str:
    """Whether the zeros are likely to make the model faster, in one sentence, where the device has a word on that."""
    sparse = [row for row in rows if row.status == done]
    if rule.target is None or rule.knows_levels or not sparse:
        return ""
    paying = [row for row in sparse if all(use.pays is not False for use in row.uses)]
    if not paying:
        return f"the zeros are unlikely to make the model faster on {rule.target.text}: no weight is likely to pay"
    if len(paying) == len(sparse):
        return f"the zeros are likely to pay on {rule.target.text}, in all pruned weights"
    share = 100 * sum(row.size for row in paying) / sum(row.size for row in sparse)
    held = f"which {'has' if len(paying) == 1 else 'have'} {share:.1f} % of the pruned numbers"
    return f"the zeros are likely to pay on {rule.target.text} in {len(paying)} of {len(sparse)} weights, {held}"


def others_of(weight: Weight) -> tuple[str, ...]:
    """What reads these numbers without being a layer; a shape is the same whatever they are."""
    found = [other for one in (weight, *weight.twins) for other in one.others]
    return tuple(dict.fromkeys(other for other in found if not other.startswith(("Shape '", "Size '"))))


def moves(others: Sequence[str]) -> str:
    """What zeros do where a weight is read otherwise, too."""
    more = f" and {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    where = ", ".join(others[:MOST_OTHERS]) + more
    return f"its numbers also go to {where}: what comes out there moves with the zeros" if others else ""


# -- Bytes of a sparse weight in the form a device or an archive would keep it: the kept numbers and where they are.
#
# N:M           kept numbers, and for each its place in the group (2 bits for 2:4)
# block         kept blocks, and one bit for each block
# filter        kept filters, and one bit for each
# anything else kept numbers, and one bit for each element


def sparse_bytes(pattern: Pattern | None, shape4: tuple[int, ...], size: int, zeros: int, dense: int) -> int:
    """Bytes after compression; never more than the dense form, which a device may always keep."""
    if pattern is None or not size:
        return dense
    return min(dense, -(-(size - zeros) * dense // size) + (_index_bits(pattern, shape4, size) + 7) // 8)


def _index_bits(pattern: Pattern, shape4: tuple[int, ...], size: int) -> int:
    if isinstance(pattern, NOfM):
        groups = pattern.units(shape4) * pattern.unit_size(shape4) // pattern.m
        return groups * pattern.n * (pattern.m - 1).bit_length()
    return pattern.units(shape4) if pattern.name in ("block", "filter", "channel") else size
