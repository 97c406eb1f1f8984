"""Where the processes of a group meet: a store that no earlier group has written to.

Torch's elastic agent keeps one TCP store for all the groups that it starts, one after another, and
what a lost group wrote stays there: a process of the next one may read the address of a dead one
and wait for it in vain (https://github.com/pytorch/pytorch/issues/135712). The agents' count of
restarts tells groups apart on one machine only. So the processes shake hands, and go on under a
name that the first of them has just made up.
"""

import json
import os
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from brimful.errors import RunError

_HELLO, _WELCOME, _ACCEPTED = "brimful-hello-", "brimful-welcome", "brimful-accepted-"
_POLL_S = 0.02


def meet(rank: int, size: int, *, timeout_s: float) -> Any:
    """Return the store of this group alone.

    Raises RunError: some did not come.
    """
    timeout = timedelta(seconds=timeout_s)
    store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=timeout))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store  # made for this group by its first process
    name = named_anew(store, rank, size, timeout_s=timeout_s)
    return dist.PrefixStore(f"brimful-group-{name}", store)


def named_anew(store: Any, rank: int, size: int, *, timeout_s: float) -> str:
    """Agree on a name that no earlier group had, in a store with leftovers of earlier groups.

    Every process but the first says hello with a number of its own; the first answers with the
    name and all the numbers that it saw. Who finds its own number there knows that the answer is
    new, and accepts; the first goes on when all have.

    Raises RunError: some did not come.
    """
    deadline = time.monotonic() + timeout_s
    if rank > 0:
        return _be_welcomed(store, rank, deadline)
    name = uuid.uuid4().hex
    seen: list[str] = []
    others = range(1, size)
    while missing := [r for r in others if _read(store, f"{_ACCEPTED}{r}") != name]:
        hellos = [_read(store, f"{_HELLO}{r}") for r in others]
        if hellos != seen:
            seen = hellos
            store.set(_WELCOME, json.dumps([name, *hellos]))
        _wait(deadline, f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))}")
    return name


def _be_welcomed(store: Any, rank: int, deadline: float) -> str:
    own = uuid.uuid4().hex
    store.set(f"{_HELLO}{rank}", own)
    while True:
        name, *hellos = json.loads(_read(store, _WELCOME) or '[""]')
        if own in hellos:
            store.set(f"{_ACCEPTED}{rank}", name)
            return str(name)
        _wait(deadline, "process 0")


def _read(store: Any, key: str) -> str:
    return str(store.get(key).decode()) if store.check([key]) else ""


def _wait(deadline: float, missing: str) -> None:
    if time.monotonic() > deadline:
        raise RunError(f"the group is not complete: {missing} did not come; start it again")
    time.sleep(_POLL_S)
