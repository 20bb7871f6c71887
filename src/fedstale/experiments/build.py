"""From the names in an experiment to the things they stand for, and the lists of all names."""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedstale import registry as recipes
from fedstale.core import Participation, Task, require
from fedstale.data import DATASETS, PARTITIONS, SWAPS, Federated, federate, load
from fedstale.data.files import roots
from fedstale.engines import ENGINES
from fedstale.experiments.schema import Spec, Table, build
from fedstale.fed_cis import REQUESTS, WEIGHTINGS, Tree, layered
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.tasks.quadratic import Quadratic


def make_task(data: Mapping[str, Any], model: Mapping[str, Any], device: str = "cpu") -> Task:
    """The task that the checked sections `data` and `model` of an experiment describe."""
    n, seed = data["clients"], data["seed"]
    if data["dataset"] == "quadratic" and data["centers"] is not None:
        task = Quadratic(data["centers"], data["curvature"], noise=data["noise"], start=data["start"])
        require(task.n == n, f"data.centers must be one for each of {n} clients, got {task.n}")
        return task
    if data["dataset"] == "quadratic":
        return Quadratic.random(n, data["dimension"], seed=seed, spread=data["spread"], noise=data["noise"])
    from fedstale.tasks.images import image_task
    from fedstale.tasks.split import WEIGHTS
    from fedstale.tasks.synthetic import synthetic

    own = {key: value for key, value in model.items() if key != "ridge"}
    if data.get("cis"):
        return _cis_task(data, own, model["ridge"], device)
    network: Any = build(own, _models(), "model")
    weights = WEIGHTS[data["weights"]]
    if data["dataset"] == "synthetic":
        return synthetic(
            n, data["gamma"], data["delta"], seed=seed, iid=data["iid"], max_samples=data["max_samples"],
            test_share=data["test_share"], model=network, weights=weights, ridge=model["ridge"], device=device,
        )  # fmt: skip
    return image_task(divide(data), network, weights=weights, ridge=model["ridge"], device=device)


def make_participation(spec: Spec, data: Mapping[str, Any]) -> Participation:
    """The participation that `spec` asks for; one tied to labels gets those of the data, if it has none."""
    part: Participation = build(_with_labels(spec, data), recipes.PARTICIPATION, "participation")
    return part


def _cis_task(data: Mapping[str, Any], model: Table, ridge: float, device: str) -> Task:
    from fedstale.fed_cis.task import early_exit_task

    cis = data["cis"]
    tree = _tree(cis)
    return early_exit_task(
        divide(data), build(model, _exit_models(), "model"),
        tree=tree, pairs=ExitSampling(tree.exits, cis["p"]).pairs(),
        weighting=build(cis["weighting"], WEIGHTINGS, "data.cis.weighting"), requests=REQUESTS[cis["requests"]],
        watch_variances=cis["variances"], ridge=ridge, device=device,
    )  # fmt: skip


def _tree(cis: Mapping[str, Any]) -> Tree:
    layers, nodes = ("widths", "mix"), ("parents", "exits", "arrivals", "capacity")
    given = {key for key in (*layers, *nodes) if cis[key] is not None}
    one = given in ({*layers}, {*nodes})
    require(one, f"data.cis needs {', '.join(layers)} or {', '.join(nodes)}, got {sorted(given)}")
    return layered(cis["widths"], cis["mix"]) if "mix" in given else Tree(*(cis[key] for key in nodes))


def _with_labels(spec: Spec, data: Mapping[str, Any]) -> Spec:
    table: Table = {"kind": spec} if isinstance(spec, str) else dict(spec)
    if isinstance(table.get("base"), str | dict):
        table["base"] = _with_labels(table["base"], data)
    if table.get("kind") == "label-tied" and "labels" not in table:
        require("partition" in data, f"label-tied participation needs images, got data.dataset {data['dataset']!r}")
        divided = divide(data)
        table["labels"] = [np.bincount(divided.train(i)[1], minlength=divided.classes) for i in range(divided.n)]
    if isinstance(name := table.get(setting := RECORDINGS.get(str(table.get("kind")), "")), str):
        table[setting] = _found(name)
    if table.get("kind") == "exits" and "exits" not in table:
        require(bool(data.get("cis")), "participation 'exits' needs data.cis, or exits of its own, got neither")
        table |= {"exits": np.asarray(_tree(data["cis"]).exits).tolist(), "p": data["cis"]["p"]}
    return table


def _found(name: str) -> str:
    """A recording where its name says, or in a data folder."""
    places = [Path(name), *(root / name for root in roots())]
    return str(next((place for place in places if place.exists()), name))


def divide(data: Mapping[str, Any]) -> Federated:
    """The images of a section `data`, divided among its clients."""
    rule, swap = division(data)
    return federate(
        load(data["dataset"]), rule, data["clients"],
        seed=data["seed"], fraction=data["fraction"], test_share=data["test_share"], swap=swap,
    )  # fmt: skip


def division(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """The partition rule and the label swap, if any, of a section `data` about images."""
    swap = build(data["swap"], SWAPS, "data.swap") if data["swap"] else None
    return build(data["partition"], PARTITIONS, "data.partition"), swap


Row = tuple[str, str, str]  # name, settings, one line
RECORDINGS = {"trace": "matrix", "events": "events", "grid": "grid"}  # the setting that names a file
FILLED = {"label-tied": ("labels",), "exits": ("exits", "p")}  # what `make_participation` takes from the data


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "recipes": lambda: [
        (name, _told(r), r.about or _line(type(r.strategy))) for name, r in recipes.RECIPES.items()
    ],
    "strategies": lambda: _rows(recipes.STRATEGIES),
    "participation": lambda: [
        (name, _settings(cls, FILLED.get(name, ())), _line(cls)) for name, cls in recipes.PARTICIPATION.items()
    ],
    "estimators": lambda: _rows(recipes.ESTIMATORS),
    "channels": lambda: _rows(recipes.CHANNELS),
    "servers": lambda: _rows(recipes.SERVERS),
    "engines": lambda: [(name, "", about) for name, about in ENGINES.items()],
    "datasets": lambda: [(name, "", entry.about) for name, entry in DATASETS.items()],
    "partitions": lambda: _rows(PARTITIONS),
    "swaps": lambda: _rows(SWAPS),
    "models": lambda: _rows(_models()),
    "exit-models": lambda: _rows(_exit_models()),
    "weightings": lambda: _rows(WEIGHTINGS),
}  # every list of names that an experiment can use


def _models() -> Mapping[str, Any]:
    from fedstale.tasks.models import MODELS  # torch is slow to load

    return MODELS


def _exit_models() -> Mapping[str, Any]:
    from fedstale.fed_cis.networks import EXIT_MODELS

    return EXIT_MODELS


def _rows(table: Mapping[str, Any]) -> list[Row]:
    return [(name, _settings(cls), _line(cls)) for name, cls in table.items()]


def _line(cls: type) -> str:
    """What a part is: a strategy's file begins with it, as it is a paper; others say it themselves."""
    text = sys.modules[cls.__module__].__doc__ if "strategies" in cls.__module__ else cls.__doc__
    return (text or "").strip().split("\n")[0]


def _settings(cls: Any, filled: Sequence[str] = ()) -> str:
    """`beta = 0.5, cutoff` : the fields with their defaults; those that are `filled` in need not be given."""
    fields = [f for f in dataclasses.fields(cls) if f.init]
    told = ((f.name, "(from the data)" if f.name in filled else f.default) for f in fields)
    return ", ".join(name if value is dataclasses.MISSING else f"{name} = {value}" for name, value in told)


def _told(r: recipes.Recipe) -> str:
    return repr(r.strategy) + (f" with {r.estimator!r}" if r.estimator else "")
