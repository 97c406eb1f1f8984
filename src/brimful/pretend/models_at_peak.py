"""Whose the peak is where a program has several models: a policy, a critic and a reference."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from brimful.pretend.idle_gradients import Trained
from brimful.pretend.model_values import ModelBytes
from brimful.pretend.not_updated import Part
from brimful.pretend.reading import classes_of
from brimful.pretend.recording import Recording
from brimful.values.results import ITEM_NAMES, WORKSPACES

_NOBODY = -1


@dataclass(slots=True)
class _Model:
    """An outermost module; one that another wraps is that."""

    name: str
    model: str
    parameters: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)


def models_at_peak(
    recording: Recording, item: NDArray[np.int64], peak_event: int, trained: Trained
) -> tuple[ModelBytes, ...]:
    """Return what each of several models has at the peak, the largest first; of one nothing.

    ``item``: the class of each allocation.
    """
    models = _models(trained.parts)
    if len(models) < 2:  # noqa: PLR2004 - several
        return ()
    whose = np.full(len(recording.item), _NOBODY)
    num = len(recording.phases)
    of_phase, returned = np.full(num, _NOBODY), np.zeros(num, dtype=np.int64)
    for place, model in enumerate(models):
        whose[[*model.rows, *trained.rows_for(model.parameters)]] = place
        for phase, each in trained.passes.items():
            if each.parameters & model.parameters and phase < num:
                of_phase[phase], returned[phase] = place, each.end
    alive = recording.alive_at(peak_event)
    made = recording.phase[alive]
    is_inside = (whose[alive] == _NOBODY) & (recording.born[alive] < returned[made])
    is_inside &= item[alive] != ITEM_NAMES.index(WORKSPACES)  # which all share
    whose[alive[is_inside]] = of_phase[made[is_inside]]
    found = [
        _told(recording, item, alive[whose[alive] == place], model)
        for place, model in enumerate(models)
    ]
    return tuple(sorted(found, key=lambda each: -each.num_bytes))


def _models(parts: Sequence[Part]) -> list[_Model]:
    found = list[_Model]()
    for part in parts:
        if part.path or not part.parameters:
            continue
        known = next((each for each in found if each.parameters & part.parameters), None)
        if known is None:
            known = _Model(part.name, part.model)
            found.append(known)
        known.parameters |= part.parameters
        known.rows |= {*part.rows}
    return found


def _told(
    recording: Recording, item: NDArray[np.int64], rows: NDArray[np.int64], model: _Model
) -> ModelBytes:
    names, totals = classes_of(recording), dict[str, int]()
    for row in rows.tolist():
        name = names[item[row]]
        totals[name] = totals.get(name, 0) + int(recording.num_bytes[row])
    return ModelBytes(
        name=model.name or model.model,
        model=model.model,
        num_bytes=sum(totals.values()),
        items=tuple(sorted(totals.items(), key=lambda each: -each[1])),
    )
