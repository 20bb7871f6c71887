"""The sections of an experiment: every key is checked, and an unknown one is answered with the nearest known."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedstale.core import BadInput, Local, known, require
from fedstale.experiments.spec import Spec, Table, override
from fedstale.registry import DATASETS, import_from

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Cis(Section):
    """A tree of nodes that answer requests together: layers with a mix, or every node (see cis.Tree)."""

    widths: list[int] | None = None
    mix: list[float] | None = None
    parents: list[int] | None = None
    exits: list[int] | None = None
    arrivals: list[float] | None = None
    capacity: list[float] | None = None
    p: float = 0.0
    weighting: Spec = "serving-rate"
    requests: Literal["own", "everywhere"] = "own"
    variances: bool = False  # whether an evaluation measures how much each exit's gradients vary


class Images(Section):
    """Real images, split among clients."""

    dataset: str
    clients: Annotated[int, Field(ge=1)] = 24
    seed: int = 0
    partition: Spec = "iid"
    swap: Spec | None = None
    cis: Cis | None = None
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    weights: Literal["per-client", "per-sample"] = "per-client"


class Synthetic(Section):
    """LEAF's Synthetic(γ, δ)."""

    dataset: Literal["synthetic"]
    clients: Annotated[int, Field(ge=1)] = 30
    seed: int = 0
    gamma: Annotated[float, Field(ge=0)] = 1.0
    delta: Annotated[float, Field(ge=0)] = 1.0
    iid: bool = False
    max_samples: Annotated[int, Field(ge=2)] | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    weights: Literal["per-client", "per-sample"] = "per-client"


class Quadratics(Section):
    """Quadratics with a known optimum: random ones, or those of the given centers and diagonal curvatures."""

    dataset: Literal["quadratic"]
    clients: Annotated[int, Field(ge=1)] = 24
    seed: int = 0
    dimension: Annotated[int, Field(ge=1)] = 10
    spread: Annotated[float, Field(ge=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    centers: list[list[float]] | None = None
    curvature: list[list[float]] | None = None
    start: list[float] | None = None


DATA: Mapping[str, type[Section]] = {
    **dict.fromkeys(DATASETS, Images),
    "synthetic": Synthetic,
    "quadratic": Quadratics,
}


class Model(Section):
    model_config = ConfigDict(extra="allow", strict=True)  # the rest are the model's own settings
    kind: str = "linear"
    ridge: Annotated[float, Field(ge=0)] = 0.0


class Training(Section):
    lr: Annotated[float, Field(gt=0)]
    steps: Annotated[int, Field(ge=1)] = 5
    batch: Annotated[int, Field(ge=1)] = 32
    decay: Annotated[float, Field(ge=0)] = 0.0
    prox: Annotated[float, Field(ge=0)] = 0.0


class Warmup(Training):
    """FedAvg before the comparison: every algorithm starts from where it ends."""

    rounds: Annotated[int, Field(ge=1)]


class Experiment(Section):
    """One file: several algorithms × seeds over the same data and the same participation."""

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    rounds: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [1]
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    engine: str = "serial"
    device: str = "cpu"
    data: Table
    model: Model = Model()
    local: Training
    warmup: Warmup | None = None
    participation: Spec
    estimator: Spec = "known"
    channel: Spec = "lossless"
    server: Spec = "sgd"
    algorithms: Annotated[list[Spec], Field(min_length=1)]


def read(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file, with `key=value` overrides."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"there is no experiment file {path}") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; an experiment is a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from None
    import_from(path.parent)
    raw.setdefault("name", path.stem)
    for change in overrides:
        override(raw, change)
    return check(raw)


def check(raw: Table) -> Experiment:
    """The experiment in a table, with everything that needs no data checked."""
    experiment = validated(Experiment, raw, "")
    data = experiment.data
    require("dataset" in data, f"data.dataset is missing; known: {', '.join(DATA)}")
    kind = DATA[known(data["dataset"], DATA, "data.dataset")]
    seeds = experiment.seeds
    require(len(set(seeds)) == len(seeds), f"seeds must differ from each other, got {seeds}")
    checked = validated(kind, data, "data").model_dump()
    if checked.get("cis") is None:
        checked.pop("cis", None)  # an experiment without a tree does not speak of one
    return experiment.model_copy(update={"data": checked})


def training(settings: Table, where: str) -> Local:
    """Local training from its settings, checked."""
    return Local(**validated(Training, settings, where).model_dump())


def validated(model: type[S], raw: Table, where: str) -> S:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, ([where] if where else []) + [*first["loc"]]))
        if first["type"] == "extra_forbidden":
            place = "" if path == first["loc"][-1] else f" in {path.rpartition('.')[0]}"
            known(first["loc"][-1], _siblings(model, first["loc"]), f"the key{place}")
        if first["type"] == "missing":
            raise BadInput(f"{path} is missing") from None
        raise BadInput(f"{path} {_sentence(first)}") from None


def _siblings(model: type[Section], loc: tuple[int | str, ...]) -> Mapping[str, Any]:
    """The keys that are known where the unknown one stands."""
    fields = model.model_fields
    for key in loc[:-1]:
        inner = fields[str(key)].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return {}
        fields = inner.model_fields
    return fields


def _sentence(error: Any) -> str:
    if error["type"] == "too_short":
        return "must not be empty"
    text = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{text[0].lower()}{text[1:]}, got {error['input']!r}"
