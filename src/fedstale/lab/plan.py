"""Plan an experiment: every run with its parts, its configuration and its folder, before anything is computed."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import Participation, require
from fedstale.core.rng import stream
from fedstale.data.files import roots
from fedstale.lab.build import division, located, make_participation
from fedstale.lab.runs import store
from fedstale.lab.runs.query import grouped
from fedstale.lab.schema import Experiment
from fedstale.lab.spec import Algorithm, Spec, describe, described_clock, make_section
from fedstale.lab.spec import algorithm as resolve
from fedstale.participation.clock import Clock
from fedstale.registry import PARTICIPATION, dataset_source, sources

LONGEST = 200  # bytes of a file name that users choose; file systems allow 255, endings included


class Planned(NamedTuple):
    """One run of an experiment, and where it is kept."""

    algorithm: Algorithm
    participation: Participation
    seed: int
    config: dict[str, Any]
    folder: store.RunFolder
    warmup: "Planned | None" = None  # the run whose end is this one's start
    start: store.RunFolder | None = None  # another run that this one goes on from; see lineage
    clock: Clock | None = None


def plan(experiment: Experiment, folder: Path, loaded: dict[str, dict[str, str]] | None = None) -> list[Planned]:
    """All runs: for each seed, all algorithms. Every part is built here, so a mistake is found before training.

    The plans of several experiments share `loaded`, so that a dataset of the user's own is read once for all keys.
    """
    require_short("name", experiment.name)
    require(not (experiment.grid or experiment.tune), "an experiment with [grid] or [tune] is several: sweep.cells")
    if "partition" in experiment.data:
        division(experiment.data)
    participation = make_participation(experiment.participation, experiment.data)
    algorithms = [algorithm(spec, experiment, f"algorithms.{k}") for k, spec in enumerate(experiment.algorithms)]
    model = experiment.model.model_dump() if experiment.data["dataset"] != "quadratic" else None
    name, loaded = str(experiment.data["dataset"]), {} if loaded is None else loaded
    if name not in loaded:
        loaded[name] = dataset_source(name)
    more = {"model": model} | ({"sources": loaded[name]} if loaded[name] else {})
    clock = make_section("clock", located(experiment.clock, roots()))
    return plan_parts(experiment, participation, algorithms, more, folder, clock=clock)


def plan_parts(
    experiment: Experiment,
    participation: Participation,
    algorithms: Sequence[Algorithm],
    more: dict[str, Any],
    folder: Path,
    own: Mapping[str, dict[str, str]] = {},
    clock: Clock | None = None,
) -> list[Planned]:
    """The runs of parts that are made already; `more` belongs to the configuration of each.

    `own` has, by label, the user's own code in an algorithm: a change of it concerns the runs of that one alone.
    """
    _check_labels([a.label for a in algorithms])
    data = experiment.data
    if "csv" in data:  # a file of the user's own is known by its name and content
        data = data | {"csv": Path(data["csv"]).name}
    shared = {
        "rounds": experiment.rounds,
        **experiment.model_dump(include={*experiment.later}),
        "engine": experiment.engine,
        "data": data,
        "participation": describe(participation, PARTICIPATION),
        **more,
    }
    planned = []
    for seed in experiment.seeds:
        warmup = _warmup(experiment, participation, shared, seed, folder)
        before = {"warmup": warmup.folder.path.name} if warmup else {}
        for chosen in algorithms:
            code = {"algorithm_sources": own[chosen.label]} if own.get(chosen.label) else {}
            mine = _clock(clock, chosen)
            config = _keyed(shared | described_clock(mine) | chosen.described() | {"seed": seed} | before | code)
            run = store.RunFolder(folder / store.run_name(chosen.label, seed, config))
            planned.append(Planned(chosen, participation, seed, config, run, warmup, clock=mine))
    return planned


def _clock(clock: Clock | None, chosen: Algorithm) -> Clock | None:
    """The clock of an algorithm, which may have a pace of its own."""
    if chosen.pace is None:
        return clock
    ok = clock is not None and clock.replay is None
    require(ok, f"{chosen.label}: a pace of its own needs a [clock] that is not replayed from a file")
    return dataclasses.replace(clock, pace=chosen.pace)  # type: ignore[type-var]


def _check_labels(labels: Sequence[str]) -> None:
    twice = [label for label in labels if labels.count(label) > 1]
    require(not twice, f"every algorithm needs a label of its own, got {twice[:1] * 2}; set `label`")
    for label in labels:
        require_short("label", label)


def require_short(what: str, text: str) -> None:
    """Refuse a text that is too long to be a part of a file's name."""
    size = len(text.encode())
    require(size <= LONGEST, f"{what} must be at most {LONGEST} bytes long, got {size}: {text[:20]}…")


def by_label(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    """The runs of every algorithm, in the order of the seeds."""
    return grouped(planned, lambda p: p.algorithm.label)


def warmups(planned: Sequence[Planned]) -> list[Planned]:
    """The runs that others start from, each once."""
    return list({p.warmup.folder: p.warmup for p in planned if p.warmup}.values())


def digest(planned: Sequence[Planned]) -> str:
    """Six characters that tell one set of runs from another, for the files of an overridden experiment."""
    return hashlib.sha256("".join(p.folder.path.name for p in planned).encode()).hexdigest()[:6]


def _warmup(
    experiment: Experiment, participation: Participation, shared: dict[str, Any], seed: int, folder: Path
) -> Planned | None:
    """The FedAvg run that comes first, with a seed of its own so that no random draw is used twice."""
    if experiment.warmup is None:
        return None
    rounds, alone = experiment.warmup.rounds, experiment.model_copy(update={"local": experiment.warmup})
    chosen = algorithm({"kind": "fedavg", "label": "warm-up"}, alone, "warmup")
    own = int(stream(seed, "warmup").integers(2**31))
    config = _keyed(shared | chosen.described() | {"seed": own, "rounds": rounds})
    run = store.RunFolder(folder / store.run_name("warm-up", seed, config))
    return Planned(chosen, participation, own, config, run)


def algorithm(spec: Spec, e: Experiment, where: str) -> Algorithm:
    """The parts of an entry of `algorithms`; what it leaves out is taken from the experiment."""
    return resolve(spec, where, local=e.local.settings(), estimator=e.estimator, server=e.server, channel=e.channel)


def _keyed(config: dict[str, Any]) -> dict[str, Any]:
    """With the source of the user's own parts: a run is computed again when it changes."""
    own = sources(config) | config.get("sources", {})
    return config | {"sources": own} if own else config
