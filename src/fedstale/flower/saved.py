"""The state of a Flower strategy as arrays, for `np.savez`, and back. Nothing is pickled."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedstale.core import BadInput, require
from fedstale.defence import Defence
from fedstale.flower.arrays import Layout, Slot, Values
from fedstale.flower.federation.state.server_state import Rules
from fedstale.flower.population import Clients, Population, enter
from fedstale.flower.training import Training
from fedstale.lab.runs.codec import pack, unpack

FORMAT = 1


def save(training: Training, rules: Rules) -> dict[str, Values]:
    """The training as arrays: `about` is JSON, the others are copies."""
    arrays: dict[str, Values] = {}
    population, layout, values = training
    shape = pack((population.clients, population.checkpoint), "state", arrays)
    counts = pack(population.state.counts, "counts", arrays)
    arrays |= {f"model/{name}": x for name, x in values.items()}
    about = {
        "format": FORMAT, "rules": _described(rules), "slots": layout.slots, "names": population.names,
        "state": shape, "counts": counts,
    }  # fmt: skip
    return {"about": np.array(json.dumps(about))} | {name: np.array(x) for name, x in arrays.items()}


def load(state: Mapping[str, Values], rules: Rules) -> Training:
    """The training that was saved with the same rules."""
    try:
        about: dict[str, Any] = json.loads(str(state["about"]))
        found, mine = about["format"], _described(rules)
        require(found == FORMAT, f"the saved state has format {found}, this version reads {FORMAT}")
        saved = about["rules"]
        require(saved == mine, f"the saved state belongs to {saved}, this strategy has {mine}")
        return _loaded(state, about, rules)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"this is not the state of a Flower strategy: {type(error).__name__}: {error}") from None


def _loaded(state: Mapping[str, Values], about: dict[str, Any], rules: Rules) -> Training:
    slots = [Slot(name, dtype, tuple(shape), trained) for name, dtype, shape, trained in about["slots"]]
    names, layout = tuple(about["names"]), Layout(tuple(slots))
    values = {s.name: np.array(state[f"model/{s.name}"]) for s in slots}
    params = layout.flat(values)
    fresh = enter(rules, None, names, params).state
    like, tree = fresh.checkpoint, (Clients.empty(len(names)), fresh.checkpoint)
    read = lambda path: np.array(state[path])  # noqa: E731
    clients, checkpoint = unpack(about["state"], tree, "state", read)
    if checkpoint.defence is None:  # saved before there was a defence
        checkpoint = checkpoint._replace(defence=like.defence)
    told = unpack(about["counts"], fresh.counts, "counts", read) if "counts" in about else fresh.counts
    return Training(Population(names, clients, fresh._replace(checkpoint=checkpoint, counts=told)), layout, values)


def _described(rules: Rules) -> str:
    """The parts without the settings that have their default: a later version may have more of them."""
    own = () if rules.defence == Defence() else (rules.defence or "no defence",)  # came later, and is on by default
    return ", ".join(map(_settings, (rules.strategy, rules.plain, rules.server, *own)))


def _settings(part: object) -> str:
    if not dataclasses.is_dataclass(part):
        return str(part)
    values = [(f.name, repr(getattr(part, f.name)), repr(f.default)) for f in dataclasses.fields(part)]
    return f"{type(part).__name__}({', '.join(f'{name}={x}' for name, x, default in values if x != default)})"
