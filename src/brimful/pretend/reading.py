"""Reading a recording: which class every byte belongs to, what is alive at the peak, and whose."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.pretend.modules import pattern_of
from brimful.pretend.recording import NEVER, UNTAGGED, Recording
from brimful.pretend.report_values import Tensor
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import (
    AUTOCAST_CACHE,
    BUFFERS,
    GATHERED,
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    NOT_UPDATED,
    OPTIMIZER_STATE,
    PARAMETERS,
    REDUCED,
    REFERENCE,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WHOLE_GRADIENTS,
    WORKSPACES,
    Owner,
    PhaseOwners,
    Timeline,
)
from brimful.values.timeline import thin

NUM_OWNERS = 25
NUM_PHASE_OWNERS = 6
NO_MODULE = "outside modules"
LOSS_OWNER = "loss"
_WHY = {
    PARAMETERS: "storages of model.parameters()",
    BUFFERS: "storages of model.buffers()",
    GRADIENTS: "storages of parameter.grad after backward",
    OPTIMIZER_STATE: "tensors in optimizer.state",
    AUTOCAST_CACHE: "low-precision copies of weights made by autocast",
    SAVED_ACTIVATIONS: "allocated in forward, alive when it ends",
    LOGITS: "allocated by the loss: logits, log-probabilities, their gradients",
    TRANSIENTS: "allocated and dropped within one phase",
    WORKSPACES: "taken by kernels beside their outputs; see the table of workspaces",
    GATHERED: "whole parameters that FSDP2 puts together, and the buffers they come in",
    REDUCED: "whole gradients that FSDP2 sends, in one buffer",
    REFERENCE: "the second model, which the trained one is compared with",
    WHOLE_GRADIENTS: "whole gradients of sharded parameters, kept until they are reduced",
    NOT_UPDATED: "of the sizes of the parameters, held over steps, and in no optimizer",
}

FITTED_BUFFERS = (
    "gradient times output",
    "contiguous copy of the input",
    "contiguous copy of the gradient",
    "softmax before masked rows are zeroed",
    "mask of minus infinity",
    "softmax_d, fp32 row sums",
    "dq_accum, fp32",
    "dk of every query head",
    "dv of every query head",
    "contiguous copy of the gradient of the output",
    "contiguous copy of the output",
    "the input in the type of the result",
)
"""Workspaces that have formulas, by the names that the table of workspaces gives them."""
OF_TOKENS = ("gradients in fp32",)
"""Those that have one where each token has as many bytes of them, and grow beyond a few tiles."""


def phase_of_step(name: str) -> str:
    """Map a tape phase such as ``step 2 forward`` to the phase people read: ``step 2+``."""
    if name.startswith("step 1 "):
        return "step 1"
    return "step 2+" if name.startswith("step") else name


def classes_of(recording: Recording) -> tuple[str, ...]:
    """Name the classes of a recording: those of training, then what else was tagged, if anything.

    A model that writes text has classes of its own.
    """
    return (*ITEM_NAMES, *(t for t in recording.items if t and t not in ITEM_NAMES))


def classify(recording: Recording) -> NDArray[np.int64]:
    """Give every allocation the index in ``classes_of`` of its class.

    A tag decides first; then the loss owns what it allocated; then what a forward pass leaves
    behind is a saved activation; everything else is transient.
    """
    ends = np.append(recording.phase_starts[1:], len(recording.events))
    is_forward = np.array([name.endswith("forward") for name in recording.phases])
    outlives = (recording.died == NEVER) | (recording.died >= ends[recording.phase])
    saved = is_forward[recording.phase] & outlives
    item = np.where(saved, _item(SAVED_ACTIVATIONS), _item(TRANSIENTS))
    by_loss = np.array([o.partition(".")[0] == LOSS_OWNER for o in recording.owners], dtype=bool)
    if len(by_loss):
        item = np.where(by_loss[recording.owner], _item(LOGITS), item)
    names = classes_of(recording)
    for index, tag in enumerate(recording.items):
        if tag != UNTAGGED:
            item = np.where(recording.item == index, names.index(tag), item)
    return item


def _item(name: str) -> int:
    return ITEM_NAMES.index(name)


def tensor_of(recording: Recording, item: NDArray[np.int64], row: int) -> Tensor:
    """Say of an allocation what is known of it."""
    shape, dtype = recording.shapes[recording.shape_dtype[row]]
    return Tensor(
        num_bytes=int(recording.num_bytes[row]),
        item=classes_of(recording)[item[row]],
        module=recording.owners[recording.owner[row]],
        op=recording.ops[recording.op[row]],
        node=recording.nodes[recording.node[row]],
        line=recording.lines[recording.line[row]],
        shape=shape,
        dtype=dtype,
        stream=int(recording.stream[row]),
        phase=recording.phases[recording.phase[row]],
    )


def live_of(recording: Recording, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the bytes of the chosen rows that are alive after each event."""
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    sign = np.where(recording.events >= 0, 1, -1)
    return np.cumsum(sign * (recording.num_bytes * chosen)[row])


def items_at(
    recording: Recording, event: int, item: NDArray[np.int64] | None = None
) -> tuple[MemoryItem, ...]:
    """List what is alive right after ``event``, by class; classes without bytes are left out.

    ``item``: the class of each allocation; None: as ``classify`` says.
    """
    rows = recording.alive_at(event)
    item = classify(recording) if item is None else item
    names = classes_of(recording)
    totals = np.bincount(item[rows], weights=recording.num_bytes[rows], minlength=len(names))
    phase = recording.phases[int(np.searchsorted(recording.phase_starts, event, "right")) - 1]
    return tuple(
        MemoryItem(
            name=name,
            phase=phase_of_step(phase),
            num_bytes=int(total),
            where="device",
            why=_WHY.get(name, name),
        )
        for name, total in zip(names, totals, strict=True)
        if total
    )


def phase_peaks(recording: Recording) -> tuple[PhasePeak, ...]:
    """Return the largest live total of ``load``, ``step 1`` and ``step 2+``."""
    live = recording.live_bytes()
    ends = np.append(recording.phase_starts[1:], len(live))
    peaks: dict[str, PhasePeak] = {}
    for name, start, end in zip(recording.phases, recording.phase_starts, ends, strict=True):
        phase = phase_of_step(name)
        top = int(live[start:end].max(initial=0))
        if phase not in peaks or top > peaks[phase].num_bytes:
            peaks[phase] = PhasePeak(phase=phase, num_bytes=top, where=name)
    return tuple(peaks.values())


def peak_event_of(recording: Recording) -> int:
    """Return the event after which most is alive; where steps are alike, one of the second."""
    live = recording.live_bytes()
    starts = zip(recording.phases, recording.phase_starts.tolist(), strict=True)
    second = next((start for name, start in starts if phase_of_step(name) == "step 2+"), 0)
    is_as_high = live[second:].max(initial=0) == live.max()
    return second + int(live[second:].argmax()) if is_as_high else int(live.argmax())


def timeline_of(recording: Recording) -> Timeline:
    """Thin a recording's live bytes to a chart's, with the owners of each phase's highest point."""
    live = recording.live_bytes()
    starts = recording.phase_starts.tolist()
    line = thin(live, phase_starts=starts, phases=recording.phases)
    return msgspec.structs.replace(line, owners=_phase_owners(recording, live))


def _phase_owners(recording: Recording, live: NDArray[np.int64]) -> tuple[PhaseOwners, ...]:
    """Of the phases of each name take the highest, and add up what is alive there."""
    ends = np.append(recording.phase_starts[1:], len(live))
    highest: dict[str, int] = {}
    for name, start, end in zip(recording.phases, recording.phase_starts, ends, strict=True):
        if end > start:
            event = int(start + live[start:end].argmax())
            if name not in highest or live[event] > live[highest[name]]:
                highest[name] = event
    item, patterns = classify(recording), [pattern_of(owner) for owner in recording.owners]
    return tuple(
        PhaseOwners(
            phase=name,
            num_bytes=int(live[event]),
            owners=_largest(recording, recording.alive_at(event), item, patterns),
        )
        for name, event in highest.items()
    )


def _largest(
    recording: Recording, rows: NDArray[np.int64], item: NDArray[np.int64], patterns: list[str]
) -> tuple[tuple[str, int], ...]:
    """Add rows up by the pattern of their module and their item."""
    names = classes_of(recording)
    keys = recording.owner[rows] * len(names) + item[rows]
    found, which = np.unique(keys, return_inverse=True)
    sums = np.bincount(which.ravel(), weights=recording.num_bytes[rows])
    totals: dict[str, int] = {}
    for key, total in zip(found.tolist(), sums.tolist(), strict=True):
        owner, kind = divmod(key, len(names))
        name = f"{patterns[owner] or NO_MODULE}: {names[kind]}"
        totals[name] = totals.get(name, 0) + int(total)
    return tuple(sorted(totals.items(), key=lambda pair: -pair[1])[:NUM_PHASE_OWNERS])


def owners_at(recording: Recording, event: int) -> tuple[Owner, ...]:
    """List the largest allocations alive right after ``event``."""
    rows = recording.alive_at(event)
    item, names = classify(recording), classes_of(recording)
    rows = rows[np.argsort(-recording.num_bytes[rows], kind="stable")][:NUM_OWNERS]
    return tuple(
        Owner(
            num_bytes=int(recording.num_bytes[i]),
            item=names[item[i]],
            module=recording.owners[recording.owner[i]],
            op=recording.ops[recording.op[i]],
            shape=recording.shapes[recording.shape_dtype[i]][0],
            dtype=recording.shapes[recording.shape_dtype[i]][1],
        )
        for i in rows
    )
