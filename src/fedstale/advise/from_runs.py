"""Evidence from the folder of a run, finished or not: who participated, and what its estimator believed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedstale.advise.evidence import Evidence, arrival_of, of_table, with_task
from fedstale.core import BadInput, Floats, Mask, WarmsUp, WithTruth, require
from fedstale.experiments import schema as configuration
from fedstale.experiments.schema import Experiment
from fedstale.experiments.spec import Table, build
from fedstale.registry import ESTIMATORS
from fedstale.runs import store
from fedstale.runs.query import AWAY, names_clients, presence
from fedstale.theory import normalised


def of_run(folder: store.RunFolder, weights: Floats | None) -> Evidence:
    """The participation that the run has recorded so far, with its task if that can be loaded."""
    config, lines = folder.config(), folder.metrics()
    require(len(lines) > 0, f"{folder.path} has no round in its metrics yet; nothing can be said of it")
    require(
        names_clients(lines),
        f"{folder.path} does not name the clients of its rounds (too many); give a trace instead",
    )
    here = presence(config, lines).T != AWAY  # (rounds, n): heard from, or there and not selected
    far = "finished" if folder.finished else f"{len(lines)} of {config['rounds']} rounds so far"
    e = of_table(f"{folder.path.name}, {far}", here, weights)
    told = config["estimator"]["kind"] == "known"
    e = e._replace(believed=believed(config, here), planned=int(config["rounds"]), known=told)
    try:
        e = with_task(e, experiment_of(folder.path), weights)
        return e._replace(arrival=arrival_of(config["channel"], len(e.p), e.d or 1))
    except (BadInput, OSError) as error:  # elsewhere the data may be missing: the participation is still known
        return e._replace(weights=normalised(weights, len(e.p)), notes=(f"the task is left out: {error}",))


def believed(config: Table, here: Mask) -> Floats | None:
    """(n,) what the estimator holds after these rounds: it sees nothing else. None if it was told the p_i."""
    estimator: Any = build(config["estimator"], ESTIMATORS, "estimator")
    if isinstance(estimator, WithTruth) or (isinstance(estimator, WarmsUp) and estimator.warmup_rounds):
        return None
    belief = estimator.init(here.shape[1])
    for row in here:
        belief = estimator.observe(belief, row)
    return np.asarray(estimator.probs(belief), np.float64)


def experiment_of(path: Path) -> Experiment:
    """The experiment that a run was part of; a participation that its folder only names by a hash is replayed."""
    folder = store.RunFolder(path)
    config = folder.config()
    kept = ("rounds", "data", "local", "participation", "estimator", "channel", "server")
    raw = {key: config[key] for key in kept} | {"name": "advise", "algorithms": ["fedavg"]}
    raw |= {"model": config["model"]} if config["model"] else {}
    if "sha256:" in json.dumps(config["participation"]):
        lines = folder.metrics()
        table = (presence(config, lines).T != AWAY).astype(int).tolist()
        raw["participation"] = {"kind": "trace", "matrix": table, "clients_first": False}
        raw["channel"] = "lossless"  # what was lost is already missing in what was heard
    return configuration.check(raw)
