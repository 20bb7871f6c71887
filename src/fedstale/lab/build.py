"""The task and the participation that an experiment describes, and the files that users name."""

import dataclasses
import difflib
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedstale import registry
from fedstale.core import BadInput, Participation, Task, known, require, shown
from fedstale.data import Dataset, Federated, federate, from_frame
from fedstale.data.federated import absent
from fedstale.data.files import roots
from fedstale.data.tables import client_names, is_number
from fedstale.fed_cis import REQUESTS, Tree, layered
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.lab.spec import Spec, Table, as_table, build
from fedstale.registry import OWN, own_object
from fedstale.tasks.quadratic import Quadratic

PACKAGED = Path(__file__).parent / "experiments"


def make_task(data: Mapping[str, Any], model: Mapping[str, Any], device: str = "cpu") -> Task:
    """The task that the checked sections `data` and `model` of an experiment describe."""
    try:
        return _quadratic(data) if data["dataset"] == "quadratic" else _supervised(data, model, device)
    except MemoryError as error:
        raise BadInput(f"{data['clients']} clients of {data['dataset']} do not fit into memory: {error}") from None


def _quadratic(data: Mapping[str, Any]) -> Task:
    n = data["clients"]
    if data["centers"] is None:
        whole = n * data["dimension"]
        require(whole <= 10**9, f"data.clients · data.dimension must be at most 1e9 numbers, got {whole:.0e}")
        size = {"seed": data["seed"], "spread": data["spread"], "noise": data["noise"]}
        return Quadratic.random(n, data["dimension"], **size)
    for key in ("centers", "curvature"):
        lengths = sorted({len(row) for row in data[key] or []})
        require(len(lengths) < 2, f"data.{key} must be rows of equal length, got lengths {lengths}")
    task = Quadratic(data["centers"], data["curvature"], noise=data["noise"], start=data["start"])
    require(task.n == n, f"data.centers must be one for each of {n} clients, got {task.n}")
    return task


def _supervised(data: Mapping[str, Any], model: Mapping[str, Any], device: str) -> Task:
    from fedstale.tasks.images import image_task
    from fedstale.tasks.split import WEIGHTS
    from fedstale.tasks.synthetic import synthetic

    own = {key: value for key, value in model.items() if key not in ("ridge", "loss", "metrics", *STAYING)}
    kept = {key: model[key] for key in STAYING if key in model}
    images = data["dataset"] != "synthetic" and not data.get("cis")
    told = " and model.".join(kept)
    require(images or not kept, f"model.{told} are for images, got data.dataset {data['dataset']!r}")
    if data.get("cis"):
        ok = {"loss", "metrics"}.isdisjoint(model)
        require(ok, "data.cis has cross entropy and accuracy: leave out model.loss")
        return _cis_task(data, own, model["ridge"], device)
    numbers = "csv" in data and is_number(Path(data["csv"]), data["label"])
    network, weights, loss = _network(own), WEIGHTS[data["weights"]], _loss(model.get("loss"), numbers)
    metrics = {name: own_object(of, f"model.metrics.{name}") for name, of in model.get("metrics", {}).items()}
    if data["dataset"] == "synthetic":
        return synthetic(
            data["clients"], **{key: data[key] for key in SYNTHETIC if key in data}, model=network, weights=weights,
            loss=loss, metrics=metrics, ridge=model["ridge"], device=device,
        )  # fmt: skip
    return image_task(
        divide(data), network, weights=weights, loss=loss, metrics=metrics, ridge=model["ridge"], device=device,
        **kept,
    )  # fmt: skip


def _loss(spec: Spec | None, numbers: bool) -> Any:
    """The loss of a section `model`: an object of the class that it names, or the function; else by the targets."""
    from fedstale.tasks.losses import cross_entropy

    if spec is None and not numbers:
        return cross_entropy
    spec = spec or "torch.nn:MSELoss"
    settings = as_table(spec, "model.loss")
    kind = settings.pop("kind", None)
    ok = isinstance(kind, str) and OWN.fullmatch(kind)
    require(bool(ok), f'model.loss must be "package.module:Name", such as "torch.nn:MSELoss", got {shown(kind)}')
    own = own_object(str(kind), "model.loss")
    try:
        return own(**settings) if isinstance(own, type) else partial(own, **settings) if settings else own
    except Exception as error:  # whatever the user's own code raises
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"model.loss {kind} cannot be made with {settings}: {text}") from error


def _network(spec: Table) -> Any:
    """The model of a section `model`; the user's own may be any class or function that makes an nn.Module."""
    from fedstale.tasks.models import Made

    own = own_object(spec["kind"], "model.kind") if OWN.fullmatch(spec["kind"]) else None
    if own is None or dataclasses.is_dataclass(own):
        return build(spec, registry.MODELS, "model")
    return Made(spec["kind"], own, {key: value for key, value in spec.items() if key != "kind"})


def make_participation(spec: Spec, data: Mapping[str, Any]) -> Participation:
    """The participation that `spec` asks for; one tied to labels gets those of the data, if it has none."""
    part: Participation = build(_with_labels(located(spec), data), registry.PARTICIPATION, "participation")
    return part


def _cis_task(data: Mapping[str, Any], model: Table, ridge: float, device: str) -> Task:
    from fedstale.fed_cis.task import early_exit_task

    cis, other = data["cis"], [key for key in SETS if key in data and key != "resolution"]
    require(not other, f"data.cis tests every node on samples of its own: leave out data.{', data.'.join(other)}")
    tree = _tree(cis)
    return early_exit_task(
        divide(data), build(model, registry.EXIT_MODELS, "model"),
        tree=tree, pairs=ExitSampling(tree.exits, cis["p"]).pairs(),
        weighting=build(cis["weighting"], registry.WEIGHTINGS, "data.cis.weighting"),
        requests=REQUESTS[cis["requests"]], watch_variances=cis["variances"], ridge=ridge, device=device,
        thresholds=cis.get("thresholds"),
    )  # fmt: skip


def _tree(cis: Mapping[str, Any]) -> Tree:
    layers, nodes = ("widths", "mix"), ("parents", "exits", "arrivals", "capacity")
    given = {key for key in (*layers, *nodes) if cis[key] is not None}
    one = given in ({*layers}, {*nodes})
    got = ", ".join(sorted(given)) or "none of them"
    require(one, f"data.cis needs either {', '.join(layers)}, or {', '.join(nodes)}, got {got}")
    if "mix" in given:
        require(cis.get("fractions") is None, "data.cis.fractions need parents: layers serve their mix")
        return layered(cis["widths"], cis["mix"])
    return Tree(cis["parents"], cis["exits"], cis["arrivals"], cis["capacity"], cis.get("fractions"))


def _with_labels(spec: Spec, data: Mapping[str, Any]) -> Spec:
    table: Table = {"kind": spec} if isinstance(spec, str) else dict(spec)
    if isinstance(table.get("base"), str | dict):
        table["base"] = _with_labels(table["base"], data)
    if (kind := table.get("kind")) in ("label-tied", "label-profile") and "labels" not in table:
        require("partition" in data, f"{kind} participation needs images, got data.dataset {data['dataset']!r}")
        divided = divide(data)
        table["labels"] = [np.bincount(divided.train(i)[1], minlength=divided.classes) for i in range(divided.n)]
    if table.get("kind") == "exits" and "exits" not in table:
        require(bool(data.get("cis")), "participation 'exits' needs data.cis, or exits of its own, got neither")
        p, own = data["cis"]["p"], table.get("p", data["cis"]["p"])
        require(own is p or own == p, f"participation.p must be that of data.cis, {p}, or be left out, got {own}")
        table |= {"exits": np.asarray(_tree(data["cis"]).exits).tolist(), "p": p}
    return table


def find(name: str, folder: Path = PACKAGED, what: str = "experiment") -> Path:
    """The TOML file that a user names: by its path, or by the bare name of one that comes with the package."""
    if name.endswith(".toml") or Path(name).is_file() or "/" in name:
        return Path(name)
    files = packaged(folder)
    if near := difflib.get_close_matches(name, [path.name for path in Path().glob("*.toml")], n=1, cutoff=0.6):
        raise BadInput(f"there is no file {name}; did you mean {near[0]}?")
    return files[known(name, files, what)]


def packaged(folder: Path = PACKAGED) -> dict[str, Path]:
    """The TOML files of a folder by their bare names."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def located(table: Any, *folders: Path) -> Any:
    """A table whose files, and those of inner tables, are also looked for in these folders, or in those of data."""
    if not isinstance(table, Mapping):
        return table
    named = {key: value for key, value in table.items() if key in FILES and isinstance(value, str)}
    inner = {key: located(value, *folders) for key, value in table.items()}
    return inner | {key: found_in(value, folders or roots()) for key, value in named.items()}


def found_in(name: str, folders: Sequence[Path]) -> str:
    """A file where its name says, or in one of the folders."""
    places = [Path(name), *(folder / name for folder in folders)]
    short = all(len(piece.encode()) < 256 for piece in places[0].parts)  # a longer name is no file's
    return str(next((place for place in places if short and place.exists()), name))


def counted(data: Table) -> Table:
    """A section `data` about a CSV file with its name, a hash of its content, and the number of its clients."""
    path = Path(data["csv"])
    names = client_names(path, data["client"])
    away = len(absent(data["held_out"], len(names), data["seed"])) if "held_out" in data else 0
    content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    found = {"dataset": path.name, "sha256": content, "clients": len(names) - away}
    for key, value in found.items():
        ok = data[key] in ("", None, value)
        require(ok, f"data.{key} is read from {path.name}, which has {value}: leave it out, got {shown(data[key])}")
    return data | found


def divide(data: Mapping[str, Any]) -> Federated:
    """The samples of a section `data`, divided among its clients."""
    if "csv" in data:
        given = {key: data[key] for key in TABULAR if key in data}
        return from_frame(data["csv"], **given)
    rule, swap = division(data)
    divided = federate(
        _normalised(registry.dataset(data["dataset"]), data), rule, data["clients"],
        seed=data["seed"], fraction=data["fraction"], test_share=data["test_share"], swap=swap,
        **{key: data[key] for key in SETS if key in data},
    )  # fmt: skip
    empty = int((divided.train_sizes == 0).sum())
    way = "a larger alpha, " if "alpha" in vars(rule) else ""
    less = "its min_samples" if "min_samples" in vars(rule) else "another data.seed"
    left = f"{rule} leaves {empty} of {divided.n} clients without a training sample, and every client needs one"
    require(not empty, f"{left}: take {way}fewer clients, {less} or data.drop_empty = true")
    return divided


def _normalised(images: Dataset, data: Mapping[str, Any]) -> Dataset:
    """The dataset with the mean and the deviation of its pixels that a section `data` gives, if it does."""
    mean, std = data.get("mean", images.mean), data.get("std", images.std)
    channels = images.x.shape[1] if images.x.ndim > 1 else 0
    ok = len(mean) == len(std) in (0, channels)
    require(ok, f"data.mean and data.std must be one number for each of {channels} channels, got {mean} and {std}")
    return images._replace(mean=tuple(mean), std=tuple(std))


def division(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """The partition rule and the label swap, if any, of a section `data` about images."""
    swap = build(data["swap"], registry.SWAPS, "data.swap") if data["swap"] else None
    return build(data["partition"], registry.PARTITIONS, "data.partition"), swap


TABULAR = (
    "client", "label", "leave_out", "seed", "fraction", "test_share", "validation", "held_out",
)  # of from_frame  # fmt: skip
SYNTHETIC = ("gamma", "delta", "seed", "iid", "max_samples", "classes", "dimension", "test_share")  # of synthetic
# settings of a model about what is averaged, what stays with the client, how training computes, and where sums do
STAYING = ("buffers", "personal", "precision", "aggregate")
SETS = ("test", "validation", "held_out", "drop_empty", "resolution")  # settings of `federate` that came later
RECORDINGS = {  # the setting that names a file
    "trace": "matrix", "log": "log", "events": "events", "grid": "grid", "budget": "prices",
}  # fmt: skip
FILES = {*RECORDINGS.values(), "csv", "replay", "table"}  # settings of a participation, of data or of a clock
