"""What a run is made of while it lasts."""

from typing import BinaryIO, NamedTuple

import msgspec

from brimful.build.program import Program
from brimful.train.expert_watch import ExpertWatch
from brimful.train.metering import Meter
from brimful.train.observers import Observer, Observers
from brimful.train.run_data import RunData
from brimful.train.saver import Saver
from brimful.train.settings import RunSettings
from brimful.train.takeover import Ways
from brimful.train.tally import Tally
from brimful.train.utilization import Utilization
from brimful.train.whereabouts import Whereabouts
from brimful.values.plan import Plan


class Watch(NamedTuple):
    """Who looks on: for the user, with an instrument, and at which place it is."""

    observer: Observers
    meter: Meter
    where: Whereabouts


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same from the first step to the last; the tally counts along.

    Attributes:
        meter: Measures up to ``last_metered``, and again where another strategy takes over.
        last_metered: The last step that is measured; 0: it was done by an earlier process.
        measured_peak_bytes: The highest peak that is known of the strategy; None: none yet.
    """

    plan: Plan
    settings: RunSettings
    observer: Observer
    data: RunData
    metrics: BinaryIO | None
    saver: Saver
    program: Program
    tally: Tally
    utilization: Utilization
    experts: ExpertWatch | None
    first_step: int
    started_s: float
    ways: Ways
    where: Whereabouts
    meter: Meter
    last_metered: int
    measured_peak_bytes: int | None
