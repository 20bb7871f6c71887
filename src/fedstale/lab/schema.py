"""The sections of an experiment: every key is checked, and an unknown one is answered with the nearest known."""

import errno
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)  # fmt: skip

from fedstale.core import BadInput, Local, arguments_checked, known, require, shown
from fedstale.core.own_modules import import_from
from fedstale.core.parts import alternatives
from fedstale.lab.build import counted, located
from fedstale.lab.spec import PARTS, Spec, Table, build, make, make_section, override
from fedstale.registry import DATASETS, ENGINES, OWN, own_dataset

S = TypeVar("S", bound="Section")
MOST = 10**7  # clients, or parameters of a quadratic, so that a wrong number does not fill the memory
LARGEST = 1e38  # that float32 holds
Share = Annotated[float, Field(ge=0, lt=1)]
KINDS = (  # pydantic adds
    "str", "bool", "dict[str,any]", "float", "constrained-float", "list[float]", "list[int]", "list[list[float]]",
)  # fmt: skip
ALLOWED = {  # what is wrong, as pydantic calls it, and what is allowed
    "string_type": "a text", "float_type": "a number", "int_type": "a whole number", "bool_type": "true or false",
    "int_from_float": "a whole number", "dict_type": "a table", "model_type": "a table", "list_type": "a list",
    "finite_number": "a finite number", "greater_than": "above {gt}", "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}", "less_than_equal": "at most {le}", "literal_error": "{expected}",
    "string_pattern_mismatch": "of letters, digits, '.', '_' and '-'",
}  # fmt: skip
SUCH_AS = {  # of tables and lists
    "data": '{ dataset = "digits" }', "local": "{ lr = 0.1 }", "model": '{ kind = "mlp" }',
    "warmup": "{ lr = 0.1, rounds = 10 }", "clock": "{ round_seconds = 60 }", "liars": "{ clients = [0] }",
    "privacy": "{ epsilon = 8 }",
    "grid": '{ "local.lr" = [0.1, 0.01] }', "tune": "{ lr = [0.1, 0.01] }", "seeds": "[1, 2, 3]",
    "algorithms": '["fedavg", "auto"]',
}  # fmt: skip


class Section(BaseModel):
    """A table of an experiment file: unknown keys and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    later: ClassVar[tuple[str, ...]] = ()  # keys that came later: at their defaults they are no part of a run's key

    @model_serializer(mode="wrap")
    def _told(self, dump: SerializerFunctionWrapHandler) -> Table:
        defaults = {key: type(self).model_fields[key].default for key in self.later}
        return {key: v for key, v in dump(self).items() if key not in defaults or v != defaults[key]}


class Cis(Section):
    """A tree of nodes that answer requests together: layers with a mix, or every node (see cis.Tree)."""

    model_config = ConfigDict(allow_inf_nan=True)  # a capacity may be unlimited
    later = ("fractions", "thresholds")
    widths: list[int] | None = None  # nodes in each layer, the devices first
    mix: list[float] | None = None  # share of the requests that each layer serves
    parents: list[int] | list[list[float]] | None = None  # instead of layers: the node above each, or n × n shares
    exits: list[int] | None = None  # the deepest exit that each node holds, from 1
    arrivals: list[float] | None = None  # requests per second that reach each node from outside
    capacity: list[float] | None = None  # requests per second that each node can pass on
    fractions: list[float] | None = None  # with parents: the share of its requests that each node serves
    thresholds: float | list[float] | None = None  # of all exits, or each: it answers what is less uncertain
    p: float | list[list[float]] = 0.0  # chance that a node trains a given exit below its own; or nodes × exits
    weighting: Spec = "serving-rate"  # how much each exit counts in training
    requests: Literal["own", "everywhere"] = "own"  # test samples that a node is asked about
    variances: bool = False  # whether an evaluation measures the gradient variance of each exit


class Images(Section):
    """Real images, split among clients."""

    later = ("cis", "test", "validation", "held_out", "drop_empty", "mean", "std", "resolution")
    dataset: str  # name of an image dataset
    clients: Annotated[int, Field(ge=1, le=MOST)] = 24  # number of clients
    seed: int = 0  # seed of the split, the same for all seeds of the experiment
    partition: Spec = "iid"  # which client holds which samples
    swap: Spec | None = None  # clients that disagree on labels
    cis: Cis | None = None  # a tree of nodes with early exits
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the dataset that is used
    test: Literal["per-client", "official"] = "per-client"  # official: the dataset's own test set, for all clients
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of each client's samples that is kept for testing
    validation: Share = 0.0  # share of each client's training samples that is for validation
    held_out: Share | list[int] = 0.0  # share of the clients that never train, or their numbers
    drop_empty: bool = False  # leave out clients that the partition gives no samples
    resolution: Annotated[int, Field(ge=1)] | None = None  # height of smaller images, means over squares of pixels
    mean: list[float] | None = None  # of each channel of pixels in [0, 1], subtracted; the dataset's if left out
    std: list[Annotated[float, Field(gt=0)]] | None = None  # what is then divided by; the dataset's if left out
    weights: Literal["per-client", "per-sample"] = "per-client"  # a_i = 1/N, or in proportion to the samples


class Tabular(Section):
    """A CSV file of your own: a row per sample, a column that names its client, and one that is to be predicted."""

    later = ("leave_out", "validation", "held_out")
    csv: str  # the file, also looked for beside the experiment's
    client: str  # the column that names a row's client
    label: str  # the column that is to be predicted
    leave_out: list[str] = []  # columns that are no inputs
    dataset: str = ""  # the file's name, filled in
    clients: Annotated[int, Field(ge=1)] | None = None  # counted in the file
    sha256: str = ""  # of the file's content
    seed: int = 0  # seed of the split into training and test rows
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the rows that is used
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of each client's rows that is kept for testing
    validation: Share = 0.0  # share of each client's training rows that is for validation
    held_out: Share | list[int] = 0.0  # share of the clients that never train, or their numbers
    weights: Literal["per-client", "per-sample"] = "per-client"  # a_i = 1/N, or in proportion to the rows


class Synthetic(Section):
    """LEAF's Synthetic(γ, δ)."""

    later = ("classes", "dimension")
    dataset: Literal["synthetic"]  # LEAF's Synthetic
    clients: Annotated[int, Field(ge=1, le=MOST)] = 30  # number of clients
    seed: int = 0  # seed of the data
    gamma: Annotated[float, Field(ge=0)] = 1.0  # γ: how much the clients' models differ
    delta: Annotated[float, Field(ge=0)] = 1.0  # δ: how much the clients' inputs differ
    classes: Annotated[int, Field(ge=2, le=MOST)] = 10  # number of classes
    dimension: Annotated[int, Field(ge=1, le=MOST)] = 60  # number of inputs
    iid: bool = False  # true: all clients label by the same model
    max_samples: Annotated[int, Field(ge=2)] | None = None  # most samples of a client; no limit if left out
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share of each client's samples that is kept for testing
    weights: Literal["per-client", "per-sample"] = "per-client"  # a_i = 1/N, or in proportion to the samples


class Quadratics(Section):
    """Quadratics with a known optimum: random ones, or those of the given centers and diagonal curvatures."""

    dataset: Literal["quadratic"]  # quadratic functions
    clients: Annotated[int, Field(ge=1, le=MOST)] = 24  # number of clients
    seed: int = 0  # seed of the problem
    dimension: Annotated[int, Field(ge=1, le=MOST)] = 10  # number of parameters d
    spread: Annotated[float, Field(ge=0)] = 1.0  # how far the clients' optima are apart
    noise: Annotated[float, Field(ge=0)] = 0.0  # standard deviation of the noise on every gradient
    centers: list[list[float]] | None = None  # the clients' optima, d numbers each; random if left out
    curvature: list[list[float]] | None = None  # with centers: the diagonals of the A_i; ones if left out
    start: list[float] | None = None  # with centers: where runs begin; zero if left out


DATA: Mapping[str, type[Section]] = {
    **dict.fromkeys(DATASETS, Images),
    "synthetic": Synthetic,
    "quadratic": Quadratics,
}


class Model(Section):
    """The model, its loss and its metrics."""

    model_config = ConfigDict(extra="allow", strict=True)  # the rest are the model's own settings
    later = ("loss", "metrics", "buffers", "personal", "precision", "aggregate")
    kind: str = "linear"  # name of a model; its settings stand beside it
    ridge: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0  # adds ridge · ‖w‖² / 2 to the loss
    loss: Spec | None = None  # a loss such as "torch.nn:MSELoss", or of your own; cross entropy if left out
    metrics: dict[str, str] = {}  # more scores of the test samples: name = "module:function"
    buffers: Literal["average", "local", "frozen"] = "average"  # of BatchNorm: what becomes of running statistics
    personal: list[str] = []  # layers or parameters that stay with each client, such as "head"
    precision: Literal["float32", "bfloat16"] = "float32"  # of the products in training; parameters are float32
    aggregate: Literal["cpu", "device"] = "cpu"  # device: updates are summed and remembered where they are trained

    @model_validator(mode="before")
    @classmethod
    def _named(cls, raw: Any) -> Any:
        """`model = "mlp"` is a model with its defaults."""
        return {"kind": raw} if isinstance(raw, str) else raw


class Training(Section):
    """Local training: the settings of `Local`, which checks all but the learning rate."""

    model_config = ConfigDict(extra="allow", strict=True)
    lr: Annotated[float, Field(gt=0)]  # η_c, the client learning rate

    def settings(self) -> Table:
        """The settings of Local that the section gives."""
        own = type(self).model_fields.keys() - Training.model_fields.keys()  # such as a warm-up's rounds
        return self.model_dump(exclude={*own})


class Warmup(Training):
    """FedAvg before the comparison: every algorithm starts from where it ends."""

    rounds: Annotated[int, Field(ge=1)]  # rounds of FedAvg


class Experiment(Section):
    """One file: several algorithms × seeds over the same data and the same participation."""

    later = ("evaluate_every", "evaluate_clients", "evaluate", "patience", "target", "monitor", "main", "defence",
             "liars", "privacy", "heterogeneity")  # fmt: skip
    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]  # of the picture and the table; the file's name if left out
    rounds: Annotated[int, Field(ge=1, le=10**9)]  # rounds of every run
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [1]  # one run of an algorithm each
    evaluate_every: Annotated[int, Field(ge=1)] | None = None  # rounds from one to the next; by sizes if left out
    evaluate_clients: Annotated[int, Field(ge=1)] | None = None  # so many clients, drawn once; all, or by sizes
    evaluate: Literal["all", "test"] = "all"  # test: no training objective, which takes a pass over all samples
    heterogeneity: bool = False  # also σ_g², Γ and Γ' of the clients: a pass over all training samples
    patience: Annotated[int, Field(ge=1)] | None = None  # stop a run after so many rounds without a better value
    target: float | None = None  # stop a run as soon as the value is reached
    monitor: str | None = None  # the metric that both watch; that of validation, or the main one if left out
    main: str | None = None  # the metric that tables begin with; test accuracy, or the first if left out
    engine: str = "auto"  # how local training is executed
    device: str = "cpu"  # torch device of tasks that use torch
    data: Table  # dataset and how it is divided
    model: Model = Model()  # for images and synthetic data
    local: Training  # local training of the clients
    warmup: Warmup | None = None  # FedAvg before the comparison
    participation: Spec  # which clients are available
    estimator: Spec = "known"  # how p_i is estimated, if the recipe does not say so
    channel: Spec = "lossless"  # which messages get through
    server: Spec = "sgd"  # what is done with a step
    defence: bool | Table = False  # true, or a table of settings: updates are judged before they count
    clock: Table | None = None  # how long clients take and when the server steps; rounds have no time if left out
    liars: Table | None = None  # clients that send a multiple of their update, to try a defence
    privacy: Table | None = None  # noise or epsilon, and delta: differential privacy of every client
    algorithms: Annotated[list[Spec], Field(min_length=1)]  # recipes, with settings beside kind
    grid: Table = {}  # key of the file → list of values: every combination is an experiment of its own
    tune: Table = {}  # key of an algorithm → list of values, of which the best is chosen
    tune_by: str = "objective"  # the metric by which it is chosen: the mean of the last 10 rounds and all seeds


@arguments_checked
def read(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a TOML file, with `key=value` overrides."""
    return check(read_table(Path(path), overrides))


def read_table(path: Path, overrides: Sequence[str] = ()) -> Table:
    """The table of an experiment in a TOML file, with `key=value` overrides, not checked yet."""
    raw = load(path, "experiment")
    raw.setdefault("name", path.stem)
    override(raw, *overrides)
    named = {key: located(raw[key], path.parent) for key in ("participation", "data", "clock") if key in raw}
    return raw | named


def load(path: Path, what: str) -> Table:
    """The table in a TOML file, which may name parts of modules that lie beside it."""
    try:
        raw = tomllib.loads(path.read_text())
    except IsADirectoryError:
        raise BadInput(f"{path} is a folder; a file in TOML describes the {what}") from None
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
            raise
        raise BadInput(f"there is no {what} file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a TOML file: {error}") from None
    import_from(path.parent)
    return raw


def check(raw: Table) -> Experiment:
    """The experiment in a table, with everything that needs no data checked."""
    experiment = validated(Experiment, raw, "")
    data = experiment.data
    known_ = f"known: {', '.join(DATA)}, or your own file, data.csv"
    require("dataset" in data or "csv" in data, f"data.dataset is missing; {known_}")
    kind = Tabular if "csv" in data else _section(data["dataset"])
    known(experiment.engine, ENGINES, "engine")
    for key in ("local", "warmup"):
        if section := getattr(experiment, key):
            make(Local, section.settings(), key)
    for key, names in PARTS.items():
        build(getattr(experiment, key), names, key)  # also where every algorithm has its own
    for key in ("defence", "liars", "privacy"):
        make_section(key, getattr(experiment, key))
    make_section("clock", located(experiment.clock))
    seeds = experiment.seeds
    require(len(set(seeds)) == len(seeds), f"seeds must differ from each other, got {seeds}")
    section = validated(kind, data, "data")
    _refuse_unused(experiment, section)
    checked = section.model_dump()
    return experiment.model_copy(update={"data": counted(checked) if "csv" in checked else checked})


def _refuse_unused(e: Experiment, data: Section) -> None:
    """Refuse settings that would change nothing: whoever gives one expects that it does."""
    ok = bool(e.tune) or "tune_by" not in e.model_fields_set
    require(ok, "tune_by needs settings to choose, [tune], got none")
    ok = e.monitor is None or e.patience is not None or e.target is not None
    require(ok, "monitor needs patience or target, got neither")
    if isinstance(data, Quadratics):
        ok = "model" not in e.model_fields_set
        require(ok, "model must be left out with quadratic functions, which have none")
        random, fixed = ("dimension", "spread", "seed"), ("curvature", "start")
        for key in sorted(data.model_fields_set & {*(fixed if data.centers is None else random)}):
            ok = getattr(data, key) is None
            require(ok, f"data.{key} must be left out {'without' if data.centers is None else 'with'} data.centers")


def _section(dataset: object) -> type[Section]:
    """The section that describes a dataset of this name; one of the user's own is of images."""
    if isinstance(dataset, str) and OWN.fullmatch(dataset):
        own_dataset(dataset)
        return Images
    return DATA[known(dataset, DATA, "data.dataset")]


def validated(model: type[S], raw: Table, where: str) -> S:
    """The section that a raw table describes; what is wrong with it is said in one sentence."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        first = errors[0]
        path = _path(first, where)
        if first["type"] == "extra_forbidden":
            place = "" if path == first["loc"][-1] else f" in {path.rpartition('.')[0]}"
            known(first["loc"][-1], _siblings(model, first["loc"]), f"the key{place}")
        if first["type"] == "missing":
            raise BadInput(f"{path} is missing") from None
        paths = {_path(e, where): e for e in reversed(errors) if e["loc"][:1] == first["loc"][:1]}
        path = max(reversed(paths), key=lambda path: path.count("."))  # of the types a key may have, the one meant
        raise BadInput(f"{path} {_sentence(path, [e for e in errors if _path(e, where) == path])}") from None


def _path(error: Any, where: str) -> str:
    return ".".join(str(key) for key in (where, *error["loc"]) if key not in ("", *KINDS))


def _siblings(model: type[Section], loc: tuple[int | str, ...]) -> Mapping[str, Any]:
    """The keys that are known where the unknown one stands."""
    fields = model.model_fields
    for key in loc[:-1]:
        kinds = alternatives(fields[str(key)].annotation)  # an optional section is one or None
        fields = next((x.model_fields for x in kinds if isinstance(x, type) and issubclass(x, BaseModel)), {})
    return fields


def _allowed(error: Any) -> str:
    limits = {key: f"{x:g}" if isinstance(x, float) else x for key, x in error.get("ctx", {}).items()}
    return ALLOWED[error["type"]].format(**limits)


def _sentence(path: str, errors: Sequence[Any]) -> str:
    """What a key must be; each error is of one of the types that it may have."""
    given, kinds = errors[0]["input"], [error["type"] for error in errors]
    if "too_short" in kinds:
        return "must not be empty"
    if isinstance(given, float) and given.is_integer() and kinds[0].startswith("int"):
        return f"must be a whole number: write {int(given)}, got {shown(given)}"
    if not {*kinds} <= {*ALLOWED}:
        text = errors[0]["msg"].removeprefix("Value error, ")
        return f"{text[0].lower()}{text[1:]}, got {shown(given)}"
    allowed = " or ".join(dict.fromkeys(map(_allowed, errors)))
    if {*kinds} == {"string_type", "dict_type"}:
        allowed = "a name or a table with `kind`"
    if kinds[0] in ("dict_type", "model_type", "list_type"):
        plain = kinds[0] == "list_type" and not isinstance(given, dict)
        example = SUCH_AS.get(path, f"[{shown(given)}]" if plain else None)
        allowed += f", such as {example}" if example else ""
    return f"must be {allowed}, got {shown(given)}"
