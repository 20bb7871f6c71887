"""Plan an experiment: every run with its parts, its configuration and its folder, before anything is computed."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstale import registry
from fedstale.core import Channel, Estimator, Local, Participation, Server, Strategy, known, require
from fedstale.experiments.build import division, make_participation
from fedstale.experiments.schema import Experiment, Spec, build, describe, training
from fedstale.rng import stream
from fedstale.runs import store

PACKAGED = Path(__file__).parent  # the experiments that come with the package
LOCAL_KEYS = tuple(f.name for f in dataclasses.fields(Local))
OWN_KEYS = ("kind", "label", "estimator", "server", "channel", *LOCAL_KEYS)  # of an entry of `algorithms`
LONGEST = 200  # bytes of a file name that users choose; file systems allow 255, endings included


class Algorithm(NamedTuple):
    """The parts of one entry of `algorithms`."""

    label: str
    strategy: Strategy
    estimator: Estimator
    server: Server
    channel: Channel
    local: Local


class Planned(NamedTuple):
    """One run of an experiment, and where it is kept."""

    algorithm: Algorithm
    participation: Participation
    seed: int
    config: dict[str, Any]
    folder: store.RunFolder
    warmup: "Planned | None" = None  # the run whose end is this one's start


def find(name: str, folder: Path = PACKAGED, what: str = "experiment") -> Path:
    """The TOML file that a user names: by its path, or by the bare name of one that comes with the package."""
    if name.endswith(".toml") or Path(name).is_file() or "/" in name:
        return Path(name)
    files = packaged(folder)
    return files[known(name, files, what)]


def packaged(folder: Path = PACKAGED) -> dict[str, Path]:
    """The TOML files of a folder by their bare names."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def plan(experiment: Experiment, folder: Path) -> list[Planned]:
    """All runs: for each seed, all algorithms. Every part is built here, so a mistake is found before training."""
    require_short("name", experiment.name)
    if "partition" in experiment.data:
        division(experiment.data)
    participation = make_participation(experiment.participation, experiment.data)
    algorithms = [algorithm(spec, experiment, f"algorithms.{k}") for k, spec in enumerate(experiment.algorithms)]
    labels = [a.label for a in algorithms]
    twice = [label for label in labels if labels.count(label) > 1]
    require(not twice, f"every algorithm needs a label of its own, got {twice[:1] * 2}; set `label`")
    for label in labels:
        require_short("label", label)
    shared = {
        "rounds": experiment.rounds,
        "evaluate_every": evaluate_every(experiment),
        "engine": experiment.engine,
        "data": experiment.data,
        "model": experiment.model.model_dump() if experiment.data["dataset"] != "quadratic" else None,
        "participation": describe(participation, registry.PARTICIPATION),
    }
    planned = []
    for seed in experiment.seeds:
        warmup = _warmup(experiment, participation, shared, seed, folder)
        before = {"warmup": warmup.folder.path.name} if warmup else {}
        for chosen in algorithms:
            config = shared | _described(chosen) | {"seed": seed} | before
            run = store.RunFolder(folder / store.run_name(chosen.label, seed, config))
            planned.append(Planned(chosen, participation, seed, config, run, warmup))
    return planned


def require_short(what: str, text: str) -> None:
    """Refuse a text that is too long to be a part of a file's name."""
    size = len(text.encode())
    require(size <= LONGEST, f"{what} must be at most {LONGEST} bytes long, got {size}: {text[:20]}…")


def by_label(planned: Sequence[Planned]) -> dict[str, list[Planned]]:
    """The runs of every algorithm, in the order of the seeds."""
    groups: dict[str, list[Planned]] = {}
    for p in planned:
        groups.setdefault(p.algorithm.label, []).append(p)
    return groups


def digest(planned: Sequence[Planned]) -> str:
    """Six characters that tell one set of runs from another, for the files of an overridden experiment."""
    return hashlib.sha256("".join(p.folder.path.name for p in planned).encode()).hexdigest()[:6]


def _warmup(
    experiment: Experiment, participation: Participation, shared: dict[str, Any], seed: int, folder: Path
) -> Planned | None:
    """The FedAvg run that comes first, with a seed of its own so that no random draw is used twice."""
    if experiment.warmup is None:
        return None
    settings = experiment.warmup.model_dump()
    rounds = settings.pop("rounds")
    chosen = algorithm({"kind": "fedavg", "label": "warm-up", **settings}, experiment, "warmup")
    own = int(stream(seed, "warmup").integers(2**31))
    config = shared | _described(chosen) | {"seed": own, "rounds": rounds}
    return Planned(
        chosen, participation, own, config, store.RunFolder(folder / store.run_name("warm-up", seed, config))
    )


def algorithm(spec: Spec, experiment: Experiment, where: str) -> Algorithm:
    """The parts of an entry: its own settings win over those of its recipe, and these over the experiment's."""
    entry: dict[str, Any] = {"kind": spec} if isinstance(spec, str) else dict(spec)
    require("kind" in entry, f"{where}.kind is missing; known: {', '.join(registry.RECIPES)}")
    base = registry.RECIPES[known(entry["kind"], registry.RECIPES, f"{where}.kind")]
    settings = {key: value for key, value in entry.items() if key not in OWN_KEYS}
    fields = {f.name: f for f in dataclasses.fields(base.strategy)}  # type: ignore[arg-type]
    for key in settings:
        known(key, fields | dict.fromkeys(OWN_KEYS), f"{where} setting")
    changed = ", ".join(f"{key}={value}" for key, value in settings.items())
    estimator = entry.get("estimator", base.estimator or experiment.estimator)
    local = experiment.local.model_dump() | {key: entry[key] for key in LOCAL_KEYS if key in entry}
    return Algorithm(
        label=str(entry.get("label", entry["kind"] + (f" {changed}" if changed else ""))),
        strategy=build(describe(base.strategy, registry.STRATEGIES) | settings, registry.STRATEGIES, where),
        estimator=_part(estimator, registry.ESTIMATORS, "estimator"),
        server=_part(entry.get("server", experiment.server), registry.SERVERS, "server"),
        channel=_part(entry.get("channel", experiment.channel), registry.CHANNELS, "channel"),
        local=training(local, where),
    )


def _part(spec: Any, table: Any, where: str) -> Any:
    return build(spec, table, where) if isinstance(spec, str | dict) else spec


def _described(a: Algorithm) -> dict[str, Any]:
    return {
        "label": a.label,
        "strategy": describe(a.strategy, registry.STRATEGIES),
        "estimator": describe(a.estimator, registry.ESTIMATORS),
        "server": describe(a.server, registry.SERVERS),
        "channel": describe(a.channel, registry.CHANNELS),
        "local": dataclasses.asdict(a.local),
    }


def evaluate_every(experiment: Experiment) -> int:
    """Rounds from one evaluation to the next: the experiment's, or else such that a run has about fifty."""
    return experiment.evaluate_every or max(1, experiment.rounds // 50)
