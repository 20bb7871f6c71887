"""Stored runs as tables for notebooks: one row per run, or one row per run, round and metric."""

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from fedstale.core import BadInput, arguments_checked
from fedstale.lab.runs import named, query


@arguments_checked
def runs(folder: str | PathLike[str]) -> Any:
    """A pandas DataFrame, one row per run: label, seed, settings (`local.lr`), results (`accuracy.final`)."""
    return frame(run_rows(Path(folder)))


@arguments_checked
def metrics(folder: str | PathLike[str]) -> Any:
    """A pandas DataFrame in long form: run, label, seed, round, metric, value; one row per number recorded."""
    return frame(metric_rows(Path(folder)))


@arguments_checked
def clients(folder: str | PathLike[str]) -> Any:
    """A pandas DataFrame, one row per finished run and client: its name, visits, staleness and scores."""
    return frame(client_rows(Path(folder)))


def client_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per run and client; nothing of runs that have too many clients to list them."""
    found = []
    for run in _runs(folder):
        scores, lines = run.folder.clients(), query.readable(run.folder)
        if run.result is None or "weight" not in scores:
            continue
        states = query.presence(run.config, lines)
        often, age = (states == query.HEARD).mean(axis=1), query.ages(states).mean(axis=1)
        first = {"run": run.folder.path.name, "label": run.config["label"], "seed": run.seed}
        for k in range(len(scores["weight"])):
            own = {key: values[k] for key, values in scores.items()}
            who = {"client": k, "name": run.folder.client_name(k)}
            found.append(first | who | {"heard": float(often[k]), "staleness": float(age[k])} | own)
    return found


def run_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per run, without those that cannot be read."""
    found = []
    for run in _runs(folder):
        result = query.flat(run.result or {})
        settings = {key: value for key, value in query.flat(run.config).items() if key not in ("label", "seed")}
        clash = {f"result.{key}" if key in settings else key: value for key, value in result.items()}
        first = {"run": run.folder.path.name, "label": run.config["label"], "seed": run.seed}
        found.append(first | {"finished": run.result is not None} | settings | clash)
    return found


def metric_rows(folder: Path) -> list[dict[str, Any]]:
    """One row per run, round and number."""
    return [
        {"run": run.folder.path.name, "label": run.config["label"], "seed": run.seed, "round": line["round"],
         "metric": key, "value": value}
        for run in _runs(folder)
        for line in query.readable(run.folder)
        for key, value in line.items()
        if key != "round" and isinstance(value, int | float)
    ]  # fmt: skip


def _runs(folder: Path) -> list[query.Run]:
    settings = query.settings(named.find(folder).runs)
    return [run for setting in settings for group in setting.groups for run in group.all]


def texts(table: Any) -> Any:
    """The same data frame with lists and mixed columns as text, which a Parquet file cannot hold otherwise."""
    mixed = [c for c in table.columns if table[c].dtype == object]
    return table.assign(**{c: table[c].map(lambda x: x if x is None else str(x)) for c in mixed})


def frame(rows: list[dict[str, Any]]) -> Any:
    """A pandas DataFrame of rows."""
    try:
        return import_module("pandas").DataFrame(rows)
    except ModuleNotFoundError:
        raise BadInput("data frames need pandas: pip install pandas (or 'fedstale[pandas]')") from None
