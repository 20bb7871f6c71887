"""From an experiment file to its runs: its cells, and every run with its parts, configuration and folder.

    [grid]                            # dotted key(s, with commas) = list: every combination is a cell
    [tune]                            # key of an algorithm = list: chosen per cell and algorithm
    seeds = [101, 102]                # in [tune]: seeds to choose on, apart from those that are reported

A cell is one experiment, so that its runs advance together. What is tuned is chosen by the training objective, or
by the metric `tune_by`: the mean over seeds and the last 10 rounds, from the same list for every algorithm. With
tuning seeds apart all settings are run on these, and what was chosen there is run on the others.
"""

import copy
import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedstale.core import Participation, known, require, shown
from fedstale.core.rng import stream
from fedstale.lab.build import division, located, make_participation
from fedstale.lab.runs import query, store
from fedstale.lab.runs.metrics import OBJECTIVE
from fedstale.lab.schema import Experiment, check
from fedstale.lab.spec import (
    LOCAL_KEYS,
    Algorithm,
    Spec,
    Table,
    as_table,
    describe,
    described_clock,
    make_section,
    put,
    settings_of,
)
from fedstale.lab.spec import algorithm as resolve
from fedstale.participation.clock import Clock
from fedstale.registry import PARTICIPATION, dataset_source, sources

LONGEST = 200  # bytes of a file name that users choose; file systems allow 255, endings included
OWN = ("grid", "tune", "tune_by")  # keys of a file that are about all of its cells
PLACED = ("seed", "rounds", "algorithm", "panel", "run", "chosen")  # columns that a setting may not hide


class Planned(NamedTuple):
    """One run of an experiment, and where it is kept."""

    algorithm: Algorithm
    participation: Participation
    seed: int
    config: Table
    folder: store.RunFolder
    warmup: "Planned | None" = None  # the run whose end is this one's start
    start: store.RunFolder | None = None  # another run that this one goes on from; see lineage
    clock: Clock | None = None

    @property
    def title(self) -> str:
        """Its algorithm and its seed, in words."""
        return f"{query.label_in_words(self.algorithm.label)}, seed {self.seed}"


class Choice(NamedTuple):
    """An algorithm at one setting of what is tuned."""

    algorithm: str
    settings: Table  # its own numbers: beta, kappa2, …
    tuned: Table
    label: str  # of its entry in the experiment


class Cell(NamedTuple):
    """One point of the grid: an experiment with all algorithms at all settings that are tuned."""

    panel: str  # of a figure
    point: Table
    choices: list[Choice]
    experiment: Experiment
    runs: Sequence[Planned] = ()  # once it is planned: for each seed, all choices
    by: str = OBJECTIVE  # the metric that settings are chosen by
    tuning: "Cell | None" = None  # what there is to choose, on the tuning seeds, if those are apart


def cells(raw: Table) -> list[Cell]:
    """The cells of an experiment file: one, if it has neither [grid] nor [tune]."""
    whole = check(raw)
    grid, (tune, seeds), found = _lists(whole.grid, "grid"), tuned_on(_lists(whole.tune, "tune")), list[Cell]()
    for point in combinations(grid):
        here = at({key: value for key, value in raw.items() if key not in OWN}, point)
        base = check(here)
        names = [_name(spec, tune, base, f"algorithms.{k}") for k, spec in enumerate(base.algorithms)]
        named = zip(base.algorithms, names, strict=True)
        pairs = [pair for spec, name in named for pair in entries(spec, tune, here, name)]
        for key in tune:
            used = any(key in choice.tuned for choice, _ in pairs)
            what = "a setting of an algorithm, of local training or of a part such as server.lr"
            require(used, f"tune.{key} must be {what}")
        experiment = check(here | {"algorithms": [entry for _, entry in pairs]}) if tune else base
        found.append(apart(Cell("", point, [choice for choice, _ in pairs], experiment, by=whole.tune_by), seeds))
    return found


def tuned_on(tune: Table) -> tuple[Table, list[int]]:
    """The settings of a section [tune], and its tuning seeds; none: settings are chosen on the reported ones."""
    rest, seeds = {key: values for key, values in tune.items() if key != "seeds"}, tune.get("seeds", [])
    ok = isinstance(seeds, list) and all(type(s) is int and s >= 0 for s in seeds) and len({*seeds}) == len(seeds)
    require(ok, f"tune.seeds must be different whole numbers of at least 0, such as [101, 102], got {shown(seeds)}")
    require(bool(rest) or not seeds, "tune.seeds needs a setting that is chosen, such as tune.lr = [0.1, 0.2]")
    return rest, seeds


def apart(cell: Cell, seeds: Sequence[int]) -> Cell:
    """The cell with tuning seeds, on which the algorithms with several settings are run first."""
    both = sorted({*seeds} & {*cell.experiment.seeds})
    require(not both, f"tune.seeds must be other seeds than those that are reported, got {shown(both)} in both")
    counts = Counter(c.algorithm for c in cell.choices)
    open_ = [k for k, c in enumerate(cell.choices) if counts[c.algorithm] > 1]
    if not (seeds and open_):
        return cell
    changes = {"seeds": [*seeds], "algorithms": [cell.experiment.algorithms[k] for k in open_]}
    experiment = cell.experiment.model_copy(update=changes)
    return cell._replace(tuning=cell._replace(choices=[cell.choices[k] for k in open_], experiment=experiment))


def _name(spec: Spec, tune: Mapping[str, Any], base: Experiment, where: str) -> str:
    """The label of an algorithm without what is tuned."""
    rest = {key: value for key, value in as_table(spec, where).items() if key not in tune}
    return algorithm(rest, base, where).label


def _lists(table: Table, where: str) -> dict[str, list[Any]]:
    """A table of lists, by dotted keys; nested tables are the same as dotted keys."""
    found = query.flat(table)
    for key, values in found.items():
        ok = isinstance(values, list) and len(values) > 0
        require(ok, f"{where}.{key} must be a list of values that is not empty, got {shown(values)}")
    return found


def combinations(lists: Mapping[str, Sequence[Any]]) -> Iterator[Table]:
    """Every choice of one value from each list."""
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))


def at(raw: Table, point: Table) -> Table:
    """The table of an experiment at a point of the grid."""
    here = copy.deepcopy(raw)
    for keys, value in point.items():
        for key in keys.split(","):
            put(here, key.strip(), value)
    return here


def entries(spec: Spec, tune: Mapping[str, Sequence[Any]], raw: Table, name: str) -> Iterator[tuple[Choice, Table]]:
    """An algorithm at every combination of what is tuned, as entries of the experiment.

    A key that is a setting of other strategies only, or that the strategy sets itself (β of `auto`), is left out;
    `name` is that of the algorithm at all settings.
    """
    entry = as_table(spec, "algorithms")
    own = {k: v for k, v in entry.items() if k not in ("kind", "label") and isinstance(v, int | float)}
    for tuned in combinations({key: values for key, values in tune.items() if _applies(entry, key)}):
        chosen = copy.deepcopy(entry)
        for key, value in tuned.items():
            part, dot, _ = key.partition(".")
            if dot and part not in chosen:  # the file's part, with another setting
                chosen[part] = copy.deepcopy(raw.get(part, "sgd"))
            put(chosen, key, value)
        chosen["label"] = name + "".join(f" {key}={_short(value)}" for key, value in tuned.items())
        yield Choice(name, own, tuned, chosen["label"]), chosen


def _applies(entry: Table, key: str) -> bool:
    """Whether an algorithm has a setting, and does not set it itself where the entry leaves it out."""
    own = settings_of(entry, "algorithms")
    return "." in key or key in LOCAL_KEYS or (key in own and (key in entry or own[key] is not None))


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def planned(found: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells with their runs. Each is planned once; computing and reading work on these runs.

    The configuration of a run says what was tuned: the algorithm at all settings has one name.
    """
    cells, loaded = [], dict[str, dict[str, str]]()
    for cell in found:
        how: Table = {} if cell.by == OBJECTIVE else {"by": cell.by}
        tuning = cell.tuning
        if tuning:
            how |= {"seeds": tuning.experiment.seeds}
            tuning = tuning._replace(runs=_labelled(tuning, how, folder, loaded))
        cells.append(cell._replace(runs=_labelled(cell, how, folder, loaded), tuning=tuning))
    return cells


def _labelled(cell: Cell, how: Table, folder: Path, loaded: dict[str, dict[str, str]]) -> list[Planned]:
    tuned = [c for c in cell.choices if c.tuned]
    names = {c.label: {"tuned": {"algorithm": c.algorithm, "settings": c.tuned, **how}} for c in tuned}
    runs = plan(cell.experiment, folder, loaded)
    return [p._replace(config=p.config | names.get(p.algorithm.label, {})) for p in runs]


def plan(experiment: Experiment, folder: Path, loaded: dict[str, dict[str, str]] | None = None) -> list[Planned]:
    """All runs: for each seed, all algorithms. Every part is built here, so a mistake is found before training.

    The plans of several experiments share `loaded`, so that a dataset of the user's own is read once for all keys.
    """
    require_short("name", experiment.name)
    require(not (experiment.grid or experiment.tune), "an experiment with [grid] or [tune] is several: plan.cells")
    if "partition" in experiment.data:
        division(experiment.data)
    participation = make_participation(experiment.participation, experiment.data)
    algorithms = [algorithm(spec, experiment, f"algorithms.{k}") for k, spec in enumerate(experiment.algorithms)]
    model = experiment.model.model_dump() if experiment.data["dataset"] != "quadratic" else None
    name, loaded = str(experiment.data["dataset"]), {} if loaded is None else loaded
    if name not in loaded:
        loaded[name] = dataset_source(name)
    more = {"model": model} | ({"sources": loaded[name]} if loaded[name] else {})
    clock = make_section("clock", located(experiment.clock))
    return plan_parts(experiment, participation, algorithms, more, folder, clock=clock)


def plan_parts(
    experiment: Experiment,
    participation: Participation,
    algorithms: Sequence[Algorithm],
    more: Table,
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
    return query.grouped(planned, lambda p: p.algorithm.label)


def warmups(planned: Sequence[Planned]) -> list[Planned]:
    """The runs that others start from, each once."""
    return list({p.warmup.folder: p.warmup for p in planned if p.warmup}.values())


def digest(planned: Sequence[Planned]) -> str:
    """Six characters that tell one set of runs from another, for the files of an overridden experiment."""
    return hashlib.sha256("".join(p.folder.path.name for p in planned).encode()).hexdigest()[:6]


def _warmup(
    experiment: Experiment, participation: Participation, shared: Table, seed: int, folder: Path
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


def _keyed(config: Table) -> Table:
    """With the source of the user's own parts: a run is computed again when it changes."""
    own = sources(config) | config.get("sources", {})
    return config | {"sources": own} if own else config


def reported(cell: Cell) -> Cell:
    """The cell with the settings that were chosen on its tuning seeds; the same if these are not apart."""
    if cell.tuning is None:
        return cell
    best, open_ = chosen(cell.tuning, scores(cell.tuning)), {c.algorithm for c in cell.tuning.choices}
    choices = [c for c in cell.choices if c in best or c.algorithm not in open_]
    labels = {c.label for c in choices}
    return cell._replace(choices=choices, runs=[p for p in cell.runs if p.algorithm.label in labels])


def every_run(found: Sequence[Cell]) -> list[Planned]:
    """The runs of all cells, those on tuning seeds first."""
    return [p for cell in found for p in (*(cell.tuning.runs if cell.tuning else ()), *cell.runs)]


def scores(cell: Cell) -> dict[str, float]:
    """By label what the settings are chosen by, the less the better; infinite if a run has no result."""
    groups = by_label(cell.runs)
    results = {k: [p.folder.result() if p.folder.finished else None for p in of] for k, of in groups.items()}
    done = next((r for some in results.values() for r in some if r), None)
    if done and cell.by != OBJECTIVE:  # runs that were stored before are not asked while they are computed
        known(cell.by, {name: value for name, value in done.items() if isinstance(value, Mapping)}, "tune_by")
    return {label: query.tuning_score(some, cell.by) for label, some in results.items()}


def chosen(cell: Cell, scored: Mapping[str, float]) -> list[Choice]:
    """For every algorithm the choice with the best score; of equals, the first."""
    names = dict.fromkeys(c.algorithm for c in cell.choices)
    return [min((c for c in cell.choices if c.algorithm == name), key=lambda c: scored[c.label]) for name in names]


def place(cell: Cell) -> Table:
    """The panel and the grid's values, under the name of the setting, without its section where that is clear."""
    found = {"panel": cell.panel} if cell.panel else {}
    for keys, value in cell.point.items():
        key = keys.split(",")[0]
        name = key.split(".", 1)[-1]
        found[key if name in PLACED else name] = value
    return found


def is_sweep(found: Sequence[Cell]) -> bool:
    """Whether there is more than one comparison, or something to choose."""
    return len(found) > 1 or any(choice.tuned for choice in found[0].choices)


def cost(found: Sequence[Cell]) -> tuple[int, int]:
    """The number of runs, and of rounds of all runs together."""
    runs = [_count(c) for c in found]
    return sum(runs), sum(r * c.experiment.rounds for r, c in zip(runs, found, strict=True))


def _count(cell: Cell) -> int:
    """Of a cell with tuning seeds apart, one setting of every algorithm is run on the reported ones."""
    if cell.tuning is None:
        return len(cell.choices) * len(cell.experiment.seeds)
    return _count(cell.tuning) + len({c.algorithm for c in cell.choices}) * len(cell.experiment.seeds)
