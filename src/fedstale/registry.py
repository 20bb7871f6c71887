"""The one place where a name becomes a part.

There is a table for every kind of part: RECIPES (algorithms), STRATEGIES, PARTICIPATION, PROFILES, ESTIMATORS,
CHANNELS, SERVERS, SCHEDULES, WORKLOADS, MEMORIES, DATASETS, PARTITIONS, SWAPS, MODELS, EXIT_MODELS,
WEIGHTINGS, ENGINES, LATENCIES, PACES. TABLES holds them all.

    STRATEGIES["fedstale"]                              the class; what needs torch is imported on first use
    STRATEGIES.find("fedstale", "strategy.kind")        the same; an unknown name is answered with the nearest
    STRATEGIES.find("package.module:Name", …)           a part of the user's own, checked to be a strategy
    STRATEGIES.name_of(part)                            the name that finds the class of this part
    STRATEGIES.rows()                                   (name, settings, one line) for `fedstale list`
    sources(config)                                     {own name: hash of its code and files} for a run's key

`fedstale.lab.spec` goes on from here: it builds a part, or the parts of an algorithm, from their settings.
"""

import ast
import dataclasses
import hashlib
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedstale import channels, data, engines, fed_cis, memory, participation, strategies
from fedstale.core import BadInput, Estimator, Strategy, known, require, schedules, shown
from fedstale.core.own_modules import installed, note_version
from fedstale.core.parts import require_own_allowed
from fedstale.participation import clock, estimators
from fedstale.simulate import servers
from fedstale.tasks.checksum import Content, names_file

__all__ = ["TABLES", "Names", "Recipe", "dataset", "recipe"]

OWN = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")  # package.module:Name
Row = tuple[str, str, str]  # name, settings, one line


class Recipe(NamedTuple):
    """A named algorithm: a strategy with its settings and, where the paper says so, an estimator."""

    kind: str  # name of the strategy
    settings: Mapping[str, Any] = {}
    estimator_spec: str | Mapping[str, Any] = ""  # its name, or a table with `kind` and settings
    about: str = ""  # where the strategy alone does not say it

    @property
    def strategy(self) -> Strategy:
        """The strategy, built when it is asked for."""
        return cast(Strategy, STRATEGIES[self.kind](**self.settings))

    @property
    def estimator(self) -> Estimator | None:
        """The estimator of the paper, or None where it names none."""
        spec = {"kind": self.estimator_spec} if isinstance(self.estimator_spec, str) else self.estimator_spec
        settings = {key: value for key, value in spec.items() if key != "kind"}
        return cast(Estimator, ESTIMATORS[spec["kind"]](**settings)) if spec["kind"] else None


class Names(Mapping[str, Any]):
    """The names of one kind of part; what is given as "module:Name" is imported when it is asked for."""

    def __init__(self, kind: str, parts: Mapping[str, Any], methods: Sequence[str] = ()) -> None:
        self.kind, self.methods, self._parts = kind, methods, parts

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts and name in self.foreign:
            return self.find(self.foreign[name][0], self.kind)
        part = self._parts[name]
        if not (isinstance(part, str) and OWN.fullmatch(part)):
            return part
        module, _, attribute = part.partition(":")  # one of ours: if torch is missing, the command says so
        return getattr(importlib.import_module(module), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._parts, *self.foreign])

    def __len__(self) -> int:
        return len(self._parts) + len(self.foreign)

    @property
    def foreign(self) -> dict[str, tuple[str, str]]:
        """Parts of installed packages, "module:Name" and whose it is; a name of ours stays ours."""
        table = next((key for key, names in TABLES.items() if names is self and self.methods), "")
        return {name: part for name, part in packaged_parts().get(table, {}).items() if name not in self._parts}

    def find(self, name: object, where: str) -> Any:
        """The part of that name, or the user's own as "package.module:Name"."""
        if not (isinstance(name, str) and OWN.fullmatch(name) and self.methods):
            return self[known(name, self, where)]
        part = own_object(name, where)
        lacks = [method for method in self.methods if not callable(getattr(part, method, None))]
        what = f"{where} {name!r} is not a {self.kind}: it must be a dataclass with {' and '.join(self.methods)}"
        require(isinstance(part, type) and dataclasses.is_dataclass(part), f"{what}, got {shown(part)}")
        require(not lacks, f"{what}, which lacks {' and '.join(lacks)}")
        return part

    def name_of(self, part: object) -> str:
        """The name of a part's class; of the user's own, package.module:Name."""
        cls = type(part)
        own = f"{cls.__module__}:{cls.__qualname__}"
        return next((name for name, value in self._parts.items() if value in (cls, own)), own)

    def rows(self) -> list[Row]:
        """Name, settings with their defaults, and one line on what it is."""
        ours = [(name, *(_read(p) if _unloaded(p) else _described(self[name]))) for name, p in self._parts.items()]
        return ours + [(name, *self._about(name, whose)) for name, (_, whose) in self.foreign.items()]

    def _about(self, name: str, whose: str) -> tuple[str, str]:
        """Settings and one line of a part of a package, with its origin; of a broken one what is wrong."""
        try:
            settings, about = _described(self[name])
        except BadInput as error:
            settings, about = "", f"cannot be used: {error}"
        return settings, f"{about} (from {whose})"


@cache
def packaged_parts() -> dict[str, dict[str, tuple[str, str]]]:
    """The entry points `fedstale.parts` of installed packages: `"strategies.half" = "my_parts:Half"`."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for entry in entry_points(group="fedstale.parts"):
        table, _, name = entry.name.partition(".")
        whose = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
        if table not in TABLES or not TABLES[table].methods or not name:
            lists = ", ".join(key for key, names in TABLES.items() if names.methods)
            warnings.warn(f"{whose}: fedstale.parts {entry.name!r} must be LIST.NAME, of {lists}", stacklevel=2)
        else:
            found.setdefault(table, {})[name] = (entry.value, whose)
    return found


STRATEGIES = Names("strategy", {
    "fedavg": strategies.FedAvg, "unbiased": strategies.Unbiased, "fedstale": strategies.FedStale,
    "self-tuning": strategies.SelfTuning, "fedvarp-original": strategies.FedVARP, "mifa": strategies.MIFA,
    "ca-fed": strategies.CAFed, "adafed": strategies.AdaFed, "more-available": strategies.MoreAvailable,
    "f3ast": strategies.F3AST, "udma": strategies.UDMA, "amplified": strategies.Amplified, "wait": strategies.Wait,
    "scaffold": strategies.Scaffold, "amplified-scaffold": strategies.AmplifiedScaffold,
    "fedawe": strategies.FedAWE, "fedpbc": strategies.FedPBC, "fedsteer": strategies.FedSteer,
    "fedlaavg": strategies.FedLaAvg, "afa-cd": strategies.AFACD, "afa-cs": strategies.AFACS,
    "focus": strategies.FOCUS, "fedexp": strategies.FedExP,
    "fednova": strategies.FedNova, "power-of-choice": strategies.PowerOfChoice, "median": strategies.Median,
    "trimmed-mean": strategies.TrimmedMean, "krum": strategies.Krum, "norm-bound": strategies.NormBound,
    "private-fedavg": strategies.PrivateFedAvg, "private-fedstale": strategies.PrivateFedStale,
    "fedbuff": strategies.FedBuff, "fedasync": strategies.FedAsync, "fadas": strategies.FADAS,
    "clipped": strategies.Clipped, "extrapolated": strategies.Extrapolated,
}, ("init", "aggregate"))  # fmt: skip
RECIPES = Names("algorithm", {
    "fedavg": Recipe("fedavg"),
    "unbiased": Recipe("unbiased"),
    "fedstale": Recipe("fedstale", {"beta": 0.5}),
    "auto": Recipe("self-tuning", about="FedStale that tunes itself: absent clients are predicted from a memory "
                                        "that is shrunk towards the mean."),
    "auto-unbiased": Recipe("self-tuning", {"gain": 0.5, "unbiased": True},
                            about="FedStale that tunes itself and stays unbiased."),
    "fedvarp": Recipe("fedstale", {"beta": 1.0}, about="FedVARP made unbiased: FedStale with the whole memory."),
    "fedvarp-original": Recipe("fedvarp-original"),
    "mifa": Recipe("mifa"),
    "fedlaavg": Recipe("fedlaavg", {"clients": 10}),
    "afa-cd": Recipe("afa-cd"),
    "afa-cs": Recipe("afa-cs"),
    "fedau": Recipe("unbiased", {}, "intervals", "Unbiased FedAvg that learns the p_i online."),
    "ca-fed": Recipe("ca-fed", {}, "transitions"),
    "adafed": Recipe("adafed"),
    "more-available": Recipe("more-available"),
    "f3ast": Recipe("f3ast", {"clients": 10}),
    "upga-pl": Recipe("unbiased", about="Unbiased FedAvg over lossy links."),
    "dma-pl": Recipe("fedavg", about="The mean of the models that arrived: FedAvg over lossy links."),
    "udma-pl": Recipe("udma"),
    "amplified": Recipe("amplified", {"period": 500, "factor": 10.0}),
    "wait-minibatch": Recipe("wait", {"period": 500}),
    "wait-full": Recipe("wait", {"period": 500}, about="wait-minibatch with a batch of all that a client has."),
    "scaffold": Recipe("scaffold"),
    "amplified-scaffold": Recipe("amplified-scaffold", {"period": 20, "factor": 1.5}),
    "fedawe": Recipe("fedawe"),
    "fedpbc": Recipe("fedpbc"),
    "fedsteer": Recipe("fedsteer"),
    "fedsteer-released": Recipe("fedsteer", {"released": True},
                                about="FedSteer as its code was released: coefficients of the same round, biased."),
    "focus": Recipe("focus"),
    "fedexp": Recipe("fedexp"),
    "fednova": Recipe("fednova"),
    "debiased": Recipe("unbiased", {}, {"kind": "beta-bernoulli", "n0": 1.0, "m0": 0.0},
                       "Debiasing FedAvg: p_i is the share of the rounds so far, this one included."),
    "power-of-choice": Recipe("power-of-choice", {"clients": 10, "candidates": 20}),
    "median": Recipe("median"),
    "trimmed-mean": Recipe("trimmed-mean"),
    "krum": Recipe("krum"),
    "multi-krum": Recipe("krum", {"keep": 5}, about="The mean of the five updates nearest to their neighbours."),
    "norm-bound": Recipe("norm-bound"),
    "fedbuff": Recipe("fedbuff"),
    "fedasync": Recipe("fedasync"),
    "ca2fl": Recipe("fedvarp-original", about="CA²FL: buffered updates calibrated by the cached ones; FedVARP's "
                                              "rule without rounds."),
    "ace": Recipe("mifa", about="ACE: a step with the latest update of everybody at every arrival; MIFA's rule "
                                "without rounds."),
    "fadas": Recipe("fadas"),
})  # fmt: skip
PARTICIPATION = Names("participation", {
    "bernoulli": participation.Bernoulli, "two-groups": participation.TwoGroups, "markov": participation.Markov,
    "markov-classes": participation.MarkovClasses, "clustered-markov": participation.ClusteredMarkov,
    "cyclic": participation.Cyclic, "diurnal": participation.Diurnal, "label-tied": participation.LabelTied,
    "label-profile": participation.LabelProfile, "minimum-separation": participation.MinimumSeparation,
    "trace": participation.Trace, "log": participation.Log, "events": participation.Events,
    "grid": participation.Grid, "battery": participation.Battery, "budget": participation.Budget,
    "sampling": participation.Sampling, "regularised-sampling": participation.RegularisedSampling,
    "exits": "fedstale.fed_cis.sampling:ExitSampling",
}, ("probs", "rows"))  # fmt: skip
PROFILES = Names("profile", {
    "stationary": participation.Stationary, "staircase": participation.Staircase, "sine": participation.Sine,
}, ("level",))  # fmt: skip
ESTIMATORS = Names("estimator", {
    "known": estimators.Known, "intervals": estimators.Intervals, "beta-bernoulli": estimators.BetaBernoulli,
    "transitions": estimators.Transitions,
}, ("init", "probs", "observe"))  # fmt: skip
CHANNELS = Names("channel", {
    "lossless": channels.Lossless, "loss": channels.Loss, "gilbert-elliott": channels.GilbertElliott,
    "packets": channels.Packets,
}, ("probs", "share", "init", "downlink", "uplink"))  # fmt: skip
SERVERS = Names("server", {
    "sgd": servers.Sgd, "momentum": servers.Momentum, "adam": servers.Adam, "yogi": servers.Yogi,
    "projection": servers.Projection, "box": servers.Box, "affine": servers.Affine, "onto": servers.Onto,
}, ("init", "apply"))  # fmt: skip
LATENCIES = Names("latency", {
    "constant": clock.Constant, "lognormal": clock.Lognormal, "devices": clock.Devices,
}, ("fleet", "seconds"))  # fmt: skip
PACES = Names("pace", {"rounds": clock.Rounds, "buffer": clock.Buffer, "ticks": clock.Ticks}, ("rule",))
SCHEDULES = Names("schedule", {
    "cosine": schedules.Cosine, "step-decay": schedules.StepDecay, "warmup": schedules.Warmup,
    "inverse-steps": schedules.InverseSteps,
}, ("factor",))  # fmt: skip
WORKLOADS = Names("workload", {"uniform": schedules.UniformSteps}, ("steps",))
MEMORIES = Names("memory coding", {
    "float32": memory.Float32, "float16": memory.Float16, "int8": memory.Int8, "clients": memory.AtClients,
}, ("scales", "encode", "decode"))  # fmt: skip
PARTITIONS = Names("partition", {
    "iid": data.IID, "shares": data.Shares, "dirichlet": data.Dirichlet,
    "clustered-dirichlet": data.ClusteredDirichlet, "shards": data.Shards, "majority": data.Majority,
    "by-writer": data.ByWriter,
}, ("split",))  # fmt: skip
SWAPS = Names("label swap", {"label-swap": data.LabelSwap, "released-swap": data.ReleasedSwap}, ("apply",))
MODELS = Names("model", {
    "linear": "fedstale.tasks.models:Linear", "mlp": "fedstale.tasks.models:MLP",
    "cnn": "fedstale.tasks.models:CNN", "gru": "fedstale.tasks.models:GRU",
    "mnist-cnn": "fedstale.tasks.models:MnistCNN", "cifar-cnn": "fedstale.tasks.models:CifarCNN",
    "fashion-cnn": "fedstale.tasks.models:FashionCNN", "padded-cifar-cnn": "fedstale.tasks.models:PaddedCifarCNN",
}, ("build",))  # fmt: skip
EXIT_MODELS = Names("model with exits", {
    "exit-cnn": "fedstale.fed_cis.networks:ExitCNN", "exit-resnet18": "fedstale.fed_cis.networks:ExitResNet18",
    "sliced-cnn": "fedstale.fed_cis.networks:SlicedCNN",
}, ("build",))  # fmt: skip
WEIGHTINGS = Names("weighting", {
    "equal": fed_cis.Equal, "flops": fed_cis.FlopsProportional, "serving-rate": fed_cis.ServingRate,
    "balanced": fed_cis.Balanced, "given": fed_cis.Given,
}, ("weights",))  # fmt: skip
DATASETS = Names("dataset", data.DATASETS)
ENGINES = Names("engine", engines.ENGINES)
TABLES = {
    "recipes": RECIPES, "strategies": STRATEGIES, "participation": PARTICIPATION, "profiles": PROFILES,
    "estimators": ESTIMATORS, "channels": CHANNELS, "servers": SERVERS, "schedules": SCHEDULES,
    "workloads": WORKLOADS, "memories": MEMORIES, "engines": ENGINES, "datasets": DATASETS,
    "partitions": PARTITIONS, "swaps": SWAPS, "models": MODELS, "exit-models": EXIT_MODELS,
    "weightings": WEIGHTINGS, "latencies": LATENCIES, "paces": PACES,
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """The parts of a named algorithm: `recipe("fedau")` is Unbiased with the Intervals estimator."""
    return cast(Recipe, RECIPES.find(name, "recipe"))


def dataset(name: str) -> data.Dataset:
    """The dataset of that name, or what the user's own function "package.module:function" returns."""
    if not OWN.fullmatch(name):
        return data.load(name)
    made = own_dataset(name)()
    ok = isinstance(made, data.Dataset)
    require(ok, f"data.dataset {name!r} must return a fedstale.data.Dataset, got {shown(made)}")
    return cast(data.Dataset, made)


def own_dataset(name: str) -> Callable[[], object]:
    """The user's own function that loads a dataset."""
    function = own_object(name, "data.dataset")
    ok = callable(function)
    require(ok, f"data.dataset {name!r} must be a function without arguments, got {shown(function)}")
    return cast(Callable[[], object], function)


def sources(config: object) -> dict[str, str]:
    """The own parts that a configuration names, each with a hash of its code and of the files that it reads.

    An own module counts whole, with the own modules that it imports and the files that it, or a setting of the
    part, names. An installed module counts by the file of that module.
    """
    if isinstance(config, Mapping):
        found = sources([value for key, value in config.items() if key != "label"])
        kind = config.get("kind")
        if isinstance(kind, str) and kind in found:
            files = [Path(text) for text in config.values() if isinstance(text, str) and names_file(text)]
            told = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
            if told:
                found[kind] = hashlib.sha256("".join([found[kind], *told]).encode()).hexdigest()[:16]
        return found
    if isinstance(config, list | tuple):
        return {name: digest for value in config for name, digest in sources(value).items()}
    return _source(config) if isinstance(config, str) and OWN.fullmatch(config) else {}


def _source(own: str) -> dict[str, str]:
    require_own_allowed(own, "the part")
    module, _, name = own.partition(":")
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # it is no module's name: the text is not that of a part
        return {}
    file = Path(found.origin or "") if found else Path()
    if not file.is_file():
        return {}
    if installed(file):
        return {own: hashlib.sha256(file.read_bytes()).hexdigest()[:16]}
    loaded = importlib.import_module(module)
    return {own: Content([loaded, vars(loaded).get(name)]).digest()}


def dataset_source(name: str) -> dict[str, str]:
    """The hash of a dataset of the user's own: its code as in `sources`, and the samples that it returns."""
    return {own: Content([digest, dataset(own)]).digest() for own, digest in sources(name).items()}


def own_object(own: str, where: str) -> Any:
    """What "package.module:Name" names."""
    require_own_allowed(own, where)
    module, _, name = own.partition(":")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            places = "the folder of the file or among the installed"
            raise BadInput(f"{where} {own!r}: there is no module {error.name!r} in {places}") from None
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise BadInput(f"{where} {own!r}: importing {module} failed with {text}") from error
    note_version(found)
    public = {key: value for key, value in vars(found).items() if not key.startswith("_")}
    return getattr(found, known(name, public, f"{where}: in module {module} the name"))


def _with_settings(kind: str, settings: Mapping[str, Any]) -> str:
    """`fedstale (beta = 0.5)`."""
    own = ", ".join(f"{key} = {shown(value)}" for key, value in settings.items() if key != "kind")
    return f"{kind} ({own})" if own else kind


def _unloaded(part: Any) -> bool:
    """Whether a part is "module:Name" of a module that is not imported yet."""
    return isinstance(part, str) and bool(OWN.fullmatch(part)) and part.partition(":")[0] not in sys.modules


def _read(part: str) -> tuple[str, str]:
    """Settings and one line of a part from its source, because its module would load torch."""
    module, _, name = part.partition(":")
    found = cast(ModuleSpec, importlib.util.find_spec(module))
    body = ast.parse(Path(cast(str, found.origin)).read_text(encoding="utf-8")).body
    (made,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [(ast.unparse(f.target), f.value) for f in made.body if isinstance(f, ast.AnnAssign)]
    settings = [key if value is None else f"{key} = {ast.literal_eval(value)}" for key, value in fields]
    return ", ".join(settings), (ast.get_docstring(made) or "").split("\n")[0]


def _described(value: Any) -> tuple[str, str]:
    """Settings and one line of a part: of its class, recipe, or of what has only an `about`."""
    if isinstance(value, Recipe):
        spec = value.estimator_spec
        told = {"kind": spec} if isinstance(spec, str) else spec
        parts = _with_settings(value.kind, value.settings)
        parts += f" with {_with_settings(told['kind'], told)}" if spec else ""
        return parts, value.about or _described(type(value.strategy))[1]
    if not dataclasses.is_dataclass(value):
        return "", value if isinstance(value, str) else value.about
    filled = vars(value).get("from_data", ())  # settings that an experiment takes from its data
    fields = [(f.name, "(from the data)" if f.name in filled else f.default) for f in dataclasses.fields(value)]
    settings = [name if default is dataclasses.MISSING else f"{name} = {default}" for name, default in fields]
    paper = sys.modules[value.__module__].__doc__ if "strategies" in value.__module__ else value.__doc__
    return ", ".join(settings), (paper or "").strip().split("\n")[0]
