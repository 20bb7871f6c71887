"""The HTML page: whole, escaped, thinned, and honest about what it leaves out."""

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.core import BadInput
from fedstale.lab import schema as configuration
from fedstale.lab.execute import execute
from fedstale.lab.plan import plan
from fedstale.lab.runs import metrics, named, query, store
from fedstale.lab.runs.metrics import WINDOWS
from fedstale.lab.runs.statistics import spread
from fedstale.lab.runs.verdict import verdict
from fedstale.view.page import clients, diagnosis, page, plots, series, served, sweeps, tables
from fedstale.view.page.markup import data
from fedstale.view.plots.palette import looks
from tests.cli.commands import fedstale

pytest.importorskip("plotly", reason="the report needs the extra `report`")

NASTY = '<b>sly</b> & "co" </script>'
DIGITS: dict[str, Any] = {
    "name": "try",
    "rounds": 12,
    "seeds": [1, 2],
    "engine": "batched",
    "data": {"dataset": "digits", "clients": 6, "fraction": 0.2},
    "local": {"lr": 0.05, "steps": 2},
    "participation": {"kind": "two-groups", "p_min": 0.3},
    "algorithms": ["fedavg", {"kind": "auto", "label": NASTY}, {"kind": "fedstale", "beta": 0.5}],
}


def compute(folder: Path, **changes: Any) -> Path:
    planned_from = configuration.check(DIGITS | changes)
    planned = plan(planned_from, store.open_store(folder))
    for _ in execute(planned_from, planned):
        pass
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compute(tmp_path_factory.mktemp("report") / "runs")


def settings(folder: Path) -> list[query.Setting]:
    return query.settings(named.find(folder).runs)


class Parsed(HTMLParser):
    """Tags that close in order, ids, texts of figures, and every address."""

    VOID = ("meta", "link", "br", "path", "circle", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self.open[-1] if self.open else "", []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.seen if name == tag]


@pytest.fixture(scope="module")
def made(runs: Path) -> Parsed:
    return Parsed(page.page(settings(runs), [], "A title <with> signs", 6))


def test_the_page_is_whole_and_names_every_plot(made: Parsed) -> None:
    assert made.open == []
    ids = [attrs["id"] for _, attrs in made.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    captions = [text for text in made.words["figcaption"] if text]
    for title in ("Test accuracy", "Training objective", "Realised weights", "Who took part: all algorithms"):
        assert title in captions
    assert any(c.startswith("Accuracy of each client") for c in captions)
    assert any(c.startswith("β in each round") for c in captions)
    assert any(c.startswith("Staleness") for c in captions)
    assert "A title <with> signs" in made.words["h1"]


def test_every_plot_has_words_and_numbers_beside_it(made: Parsed) -> None:
    plots = json.loads(made.words["script"][0])
    pictures = [attrs for attrs in made.all("div") if attrs.get("role") == "img"]
    assert {p["id"] for p in pictures} == set(plots)
    assert all(len(p["aria-label"] or "") > 40 for p in pictures)
    assert len(made.all("details")) == len(plots) + 2  # and the clients and the configuration
    assert len(made.all("table")) == len(plots) + 3  # and how it ended


def test_nothing_is_fetched_and_no_label_is_markup(made: Parsed, runs: Path) -> None:
    for tag, attrs in made.seen:
        assert not (attrs.get("src") or "").strip(), tag
        assert (attrs.get("href") or "#").startswith(("#", "data:")), tag
    assert NASTY in made.words["button"]
    assert [b["data-key"] for b in made.all("button") if b.get("data-key") == NASTY]


def test_a_label_cannot_end_the_script() -> None:
    text = data({"name": "</script><script>alert(1)</script> \u2028"})
    assert "<" not in text
    assert "\u2028" not in text
    assert json.loads(text)["name"].startswith("</script>")


def test_plots_are_what_plotly_knows(runs: Path) -> None:
    """Every trace and every setting passes plotly's own checks."""
    from plotly.graph_objects import Figure

    text = page.page(settings(runs), [], "t", 6)
    for plot in json.loads(Parsed(text).words["script"][0]).values():
        Figure(data=plot["data"], layout=plot["layout"])


def test_the_table_has_mean_and_spread_of_the_results(runs: Path) -> None:
    (setting,) = settings(runs)
    table, best = tables.final(setting.groups)
    names = [row[0] for row in table.rows]
    results = [r.result()["accuracy"]["last10"] for r in store.runs(runs) if r.path.name.startswith("fedavg")]
    row = table.rows[names.index("fedavg")]
    assert row[1] == f"{100 * np.mean(results):.2f} ± {100 * np.std(results, ddof=1):.2f} %"
    assert row[-1] == "2"
    assert all(0 <= k < 3 and 1 <= column <= 4 for k, column in best)


def test_the_best_of_a_column_is_marked_and_what_may_be_as_good_has_a_sign() -> None:
    def group(label: str, accuracies: list[float], objectives: list[float]) -> query.Group:
        runs = [
            query.Run(
                store.RunFolder(Path("x")), {"seed": k, "label": label},
                {"accuracy": dict.fromkeys(WINDOWS, a), "objective": dict.fromkeys(WINDOWS, o)},
            )
            for k, (a, o) in enumerate(zip(accuracies, objectives, strict=True))
        ]  # fmt: skip
        return query.Group(label, runs, [])

    low, near, top = [0.5, 0.51, 0.52], [0.9, 0.88, 0.93], [0.92, 0.9, 0.91]
    objectives = [1.0, 1.1, 1.2], [1.0, 1.1, 1.2], [1.1, 1.0, 1.2]
    groups = [group(*all_of) for all_of in zip(("low", "near", "top"), (low, near, top), objectives, strict=True)]
    table, best = tables.final(groups)
    assert best == {(2, column) for column in (1, 2, 3)}  # no objective leads
    signs = [[cell.endswith("≈") for cell in row[1:5]] for row in table.rows]
    assert signs == [[False] * 4, [True] * 3 + [False], [False] * 4]
    one = [g._replace(runs=g.runs[:1]) for g in groups]
    assert tables.final(one)[1] == set()  # one seed alone proves nothing


def test_curves_are_means_over_seeds(runs: Path) -> None:
    (setting,) = settings(runs)
    lines = series.read(setting.groups)[0]
    found = series.series(lines, "objective")
    assert found is not None
    mean, std, _ = found.values
    by_hand = np.array([[line["objective"] for line in run if "objective" in line] for run in lines.seeds])
    np.testing.assert_allclose(mean, by_hand.mean(axis=0))
    np.testing.assert_allclose(std, by_hand.std(axis=0, ddof=1))


def test_a_band_on_a_logarithmic_axis_ends_above_zero() -> None:
    seeds = np.array([[1.0, 0.5], [9.0, 0.1], [0.2, 0.1]])
    found = series.Series("a", [1, 2], spread(seeds), 2, seeds.min(axis=0))
    band, _ = plots.mean_curves([found], metrics.metric("objective"), looks(["a"])).data
    assert min(band["y"]) == pytest.approx(0.1)
    assert band["y"][-1] == pytest.approx(0.2)  # of the first round; mean − deviation is below 0


def test_each_clients_accuracy_averages_to_the_whole(runs: Path) -> None:
    """`clients.json` is of the final parameters: weighted, it is the accuracy of the last round."""
    for run in store.runs(runs):
        known = run.clients()
        whole = float(np.dot(known["weight"], known["accuracy"]))  # type: ignore[arg-type]
        assert whole == pytest.approx(run.result()["accuracy"]["final"], abs=1e-4)


def test_shares_are_of_the_rounds_in_which_a_client_was_heard(runs: Path) -> None:
    (setting,) = settings(runs)
    lines = series.read(setting.groups)[0]
    share = series.shares(lines)
    assert share is not None
    heard = [line["heard"] for run in lines.seeds for line in run]
    np.testing.assert_allclose(share, [np.mean([i in h for h in heard]) for i in range(6)])


def test_accuracy_is_drawn_against_visits(runs: Path) -> None:
    (setting,) = settings(runs)
    lines = series.read(setting.groups)
    plot = served.visited(lines, looks([g.group.label for g in lines]))
    assert plot is not None
    for trace, of in zip(plot.data, lines, strict=True):
        share, accuracy = series.shares(of), series.per_client(of, "accuracy")
        assert share is not None
        assert accuracy is not None
        who = [int(client.removeprefix("client ")) for client in trace["text"]]
        assert sorted(who) == list(range(6))
        assert trace["x"] == sorted(trace["x"])  # the rarest first
        np.testing.assert_allclose(trace["x"], share[who], rtol=1e-5)
        np.testing.assert_allclose(trace["y"], accuracy[who], rtol=1e-5)


def fake(rounds: int, n: int) -> series.Lines:
    """A run in which client i is heard from in the rounds that i + 1 divides."""
    lines = [
        {"round": t, "staleness": [0, 1, 2], "participants": 1, "heard": [i for i in range(n) if t % (i + 1) == 0]}
        for t in range(1, rounds + 1)
    ]
    run = query.Run(store.RunFolder(Path("nowhere")), {"seed": 3, "data": {"clients": n}}, {"rounds": rounds})
    return series.Lines(query.Group("one", [run], []), [lines])


def test_realised_weights_are_of_the_rarest_client_first() -> None:
    lines = fake(12, 3)
    lines.seeds[0][-1]["weights"] = [0.5, 0.3, 0.2]
    plot = clients.realised([lines], looks(["one"]))
    assert plot is not None
    assert plot.table.rows == [["2", "33.3 %", "0.6"], ["1", "50.0 %", "0.9"], ["0", "100.0 %", "1.5"]]
    np.testing.assert_allclose(plot.data[0]["y"], [0.6, 0.9, 1.5])


def test_a_client_is_left_behind_if_it_loses_more_than_five_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by exactly five, whatever floats make of that."""
    scores = np.array([0.5, 0.9, 0.3]), np.array([0.55, 0.95, 0.36])
    found = metrics.metric("accuracy"), [*zip("ab", scores, strict=True)]
    monkeypatch.setattr(diagnosis, "scored", lambda lines: found)
    _, many, said = diagnosis._left_behind(fake(12, 3), fake(12, 3))
    assert many == 1
    assert said.startswith("1 of 3 clients lose more than 5 points of test accuracy: client 2 (6).")


def test_a_large_raster_is_thinned_and_says_so() -> None:
    plot = clients.raster("one", fake(1100, 420))
    (trace,) = plot.data
    assert (len(trace["z"]), len(trace["z"][0])) == (200, 367)
    assert "200 of 420 clients" in plot.note
    assert "A cell is 3 rounds" in plot.note
    assert trace["z"][0] == [1.0] * 367  # client 0 is always there
    assert trace["y"][1] == 2
    assert trace["z"][1] == [0.33] * 366 + [None]  # client 2 comes every third round, and not in the last two


def test_a_small_raster_is_drawn_whole() -> None:
    plot = clients.raster("one", fake(12, 4))
    assert plot.data[0]["z"][2] == [None, None, 1, None, None, 1, None, None, 1, None, None, 1]
    assert plot.data[0]["y"] == [0, 1, 2, 3]


def test_those_not_selected_and_those_lost_are_apart_in_the_raster() -> None:
    lines = fake(4, 3)
    for line in lines.seeds[0]:
        line["heard"] = [0]
    lines.seeds[0][1] |= {"not_selected": [1], "lost": [2]}
    plot = clients.raster("one", lines)
    cells = [[[k, row.index(1)] for k, row in enumerate(trace["z"]) if 1 in row] for trace in plot.data]
    assert cells == [[[0, 0]], [[1, 1]], [[2, 1]]]
    assert len({trace["colorscale"][1][1] for trace in plot.data}) == 3
    assert (
        plot.note
        == "Seed 3; filled: heard from, orange: there, but not selected, pink: asked, but lost or refused."
    )
    assert plot.table.rows[2] == ["2", "0.0 %", "0.0 %", "25.0 %"]


def test_the_staleness_of_seeds_that_stopped_early_is_that_of_the_common_rounds() -> None:
    long, short = fake(12, 4), fake(5, 4)
    plot = clients.staleness("one", long._replace(seeds=[*long.seeds, *short.seeds]))
    assert plot.data[0]["x"] == [1, 2, 3, 4, 5]


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], seeds=[1])
    for run in store.runs(folder):
        for name in ("clients.json", "checksums.json"):  # as of an earlier version
            (run.path / name).unlink()
    text = page.page(settings(folder), [], "t", 6)
    assert "The accuracy of each client is not recorded" in text
    assert "fedstale run FILE --again" in text
    assert "No run tunes its β" in text


def test_runs_without_a_result_are_named(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"])
    first = store.runs(folder)[0]
    for name in ("result.json", "checksums.json"):
        (first.path / name).unlink()
    text = page.page(settings(folder), [], "t", 6)
    assert f"One run has no result: interrupted or diverged ({first.path.name})" in text
    assert "One seed: no band." in text


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("metrics.jsonl", '{"round":1}\n{oops\n', r"metrics\.jsonl is damaged in line 2"),
        ("metrics.jsonl", "", r"metrics\.jsonl is damaged: it is not as the run"),
        ("config.json", '{"label": "x"}', r"config\.json is damaged: it is not as the run"),
        ("result.json", '{"rounds": 2, "accuracy": 3}', r"result\.json is damaged: accuracy must have final"),
        ("config.json", '{"lab', r"config\.json cannot be read"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path, name: str, text: str, told: str) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], seeds=[1, 2], rounds=2)
    (store.runs(folder)[0].path / name).write_text(text)
    with pytest.warns(UserWarning, match=f"a run is left out: .*{told}|the run counts as unfinished, .*{told}"):
        made = Parsed(page.page(settings(folder), [], "t", 6))
    assert "Test accuracy" in made.words["figcaption"]
    assert "One seed: no band." in made.words["p"]


def test_a_damaged_result_is_one_of_an_unfinished_run(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], seeds=[1, 2], rounds=2)
    first = store.runs(folder)[0]
    (first.path / "result.json").write_text("{oops")
    with pytest.warns(UserWarning, match=r"the run counts as unfinished, .*result\.json cannot be read"):
        text = page.page(settings(folder), [], "t", 6)
    assert f"One run has no result: interrupted or diverged ({first.path.name})" in text


def test_a_new_metric_is_in_the_tables_and_curves(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = [m._replace(label="my loss", shown=True) if m.name == "loss" else m for m in metrics.METRICS]
    monkeypatch.setattr(metrics, "METRICS", tuple(loss))
    made = Parsed(page.page(settings(runs), [], "t", 6))
    assert "My loss" in made.words["figcaption"]
    assert "my loss, mean of the last 10" in made.words["th"]


def test_a_main_metric_of_ones_own_leads_tables_curves_boxes_and_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(12, 3)).astype(np.float32) for _ in range(4)]
    pairs = [(a, (a[:, 0] > 0).astype(np.int64)) for a in x]
    ones = {"iou": lambda outputs, y: float((outputs.argmax(1) == y).float().mean()) / 2}
    task = fs.Supervised(lambda: torch.nn.Linear(3, 2), train=pairs, test=pairs, metrics=ones)
    names = ["fedavg", "auto"]
    shared: Any = {"participation": fs.TwoGroups(0.3), "local": fs.Local(0.5), "seeds": [1, 2], "out": tmp_path}
    fs.compare(task, names, rounds=12, main="iou", **shared)
    made = Parsed(page.page(settings(tmp_path), [], "t", 6))
    assert made.words["th"][1] == "iou, mean of the last 10"
    assert made.words["figcaption"][0] == "IoU"
    assert "IoU of each client: who is left behind" in made.words["figcaption"]
    assert any(head.startswith("rounds to 0.") and "where fedavg ends" in head for head in made.words["th"])
    assert {"mean absence, rounds", "training samples", "its labels", "test loss, auto"} <= {*made.words["th"]}
    (setting,) = settings(tmp_path)
    assert " iou after 12 rounds" in verdict(setting.groups, {}, 2)
    with pytest.raises(BadInput, match="main 'iuo' is unknown; did you mean 'iou'"):
        fs.compare(task, names, rounds=2, main="iuo", **shared)


def test_another_engine_is_no_other_setting(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], seeds=[1], rounds=2)
    compute(folder, algorithms=["fedavg"], seeds=[1, 2], rounds=2, engine="serial")
    assert len(store.runs(folder)) == 3
    (setting,) = settings(folder)
    assert [r.seed for g in setting.groups for r in g.runs] == [1, 2]


def test_the_title_of_a_fork_says_where_it_began() -> None:
    shared = {"data": {"dataset": "digits", "clients": 3}, "participation": {"kind": "bernoulli"}, "rounds": 6}
    plain = "digits, 3 clients, bernoulli, 6 rounds"
    fork = shared | {"start": {"run": "fedavg-s1-0", "round": 3}}
    assert tables.titles_of([shared, fork]) == [
        f"{plain}, from the beginning",
        f"{plain}, from fedavg-s1-0, round 3",
    ]


def test_titles_tell_changed_data_and_code_by_the_beginning_of_their_checksums() -> None:
    def setting(content: str, code: str) -> query.Setting:
        config = {"participation": {"kind": "bernoulli", "p": 0.5}, "rounds": 3, "sources": {"__main__:net": code}}
        return query.Setting(config | {"data": {"dataset": "Supervised", "clients": 4, "content": content}}, [])

    found = tables.titles([setting("0123456789", "abcdefabcd"), setting("9876543210", "fedcbafedc")])
    first = "Supervised, 4 clients, bernoulli p=0.5, 3 rounds"
    assert found == [f"{first}, code of net abcdef, data 012345", f"{first}, code of net fedcba, data 987654"]


def test_many_settings_are_listed_and_some_drawn(tmp_path: Path) -> None:
    for p_min in (0.2, 0.3, 0.4):
        compute(tmp_path / "runs", participation={"kind": "two-groups", "p_min": p_min}, rounds=2, seeds=[1])
    text = page.page(settings(tmp_path / "runs"), [], "t", 2)
    assert "9 finished runs in 3 settings. The first 2 settings are drawn" in text
    assert text.count("<section") == 3


def group(beta: float, accuracy: float) -> query.Group:
    config = {"strategy": {"kind": "fedstale", "beta": beta}, "estimator": {"kind": "known"}, "seed": 1}
    result = {"accuracy": {"last10": accuracy}}
    return query.Group(f"β {beta}", [query.Run(store.RunFolder(Path("x")), config, result)], [])


def test_the_map_shows_the_best_beta_of_each_cell() -> None:
    best = {(0.5, 0.0): 0.0, (0.5, 1.0): 1.0, (0.1, 0.0): 0.5}
    found = [
        query.Setting(
            {"data": {"dataset": "d", "clients": 4, "swap": {"fraction": q}}, "rounds": round(1 / p),
             "participation": {"kind": "two-groups", "p_min": p}},
            [group(b, 0.9 if b == wins else 0.8) for b in (0.0, 0.5, 1.0)],
        )
        for (p, q), wins in best.items()
    ]  # fmt: skip
    (plot,) = sweeps.maps(found)
    (trace,) = plot.data
    assert (trace["x"], trace["y"]) == (["0.5", "0.1"], ["0", "1"])
    assert trace["z"] == [[0.0, 0.5], [1.0, None]]
    assert "Grey: no runs" in plot.note
    assert plot.table.rows[0] == ["0.5", "0", "0", "90.00 %", "80.00 %", "80.00 %"]
    assert sweeps.maps(found[:1]) == []


def test_of_several_rates_the_best_by_training_objective_is_shown(tmp_path: Path) -> None:
    labels = {"slow": 0.001, "fast": 0.1}  # not the rates: what is tuned is in the configuration
    entries = [{"kind": "fedavg", "lr": lr, "label": label} for label, lr in labels.items()]
    folder = compute(tmp_path / "runs", algorithms=entries, seeds=[1])
    for run in store.runs(folder):
        config = run.config()
        tuned = {"algorithm": "FedAvg", "settings": {"lr": labels[config["label"]]}}
        store.write_json(run.path / "config.json", config | {"tuned": tuned})
        (run.path / "checksums.json").unlink()
    (setting,) = settings(folder)
    assert len(setting.groups) == 2
    (chosen,) = query.tuned(setting).groups
    assert chosen.label == "FedAvg"
    assert chosen.config["local"]["lr"] == 0.1
    assert chosen.note.startswith("lr=0.1, of 2")


def test_the_same_label_with_other_settings_is_told_apart(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], seeds=[1], rounds=2)
    compute(folder, algorithms=["fedavg"], seeds=[1], rounds=2, local={"lr": 0.01, "steps": 2})
    (setting,) = settings(folder)
    assert sorted(g.label for g in setting.groups) == ["fedavg (local.lr 0.01)", "fedavg (local.lr 0.05)"]


def test_a_warm_up_is_no_run_of_its_own(tmp_path: Path) -> None:
    folder = compute(tmp_path / "runs", algorithms=["fedavg"], warmup={"rounds": 3, "lr": 0.05})
    assert len(store.runs(folder)) == 4
    (setting,) = settings(folder)
    assert [len(g.runs) for g in setting.groups] == [2]
    assert setting.config["warmup"]["rounds"] == 3


def test_a_recorded_participation(tmp_path: Path) -> None:
    path = tmp_path / "phones-trace.csv"
    path.write_text(
        "client,share,mixing,longest_absence,weight,plain_weight\n0,0.9,0,3,0.5,0.8\n1,0.1,0,40,0.5,0.2\n"
    )
    assert named.find(tmp_path).traces == [path]
    often, weights = clients.recorded(path)
    assert often.data[0]["y"] == [0.1, 0.9]  # the rarest first
    assert "30.0 % of it is misplaced" in weights.said
    assert "phones-trace.csv" in page.page([], [path], "t", 6)
    path.write_text("nonsense\n1\n")
    with pytest.raises(BadInput, match="is not what `fedstale inspect` writes"):
        clients.recorded(path)


def test_the_command_writes_one_file(runs: Path, tmp_path: Path) -> None:
    one = store.runs(runs)[0].path
    done = fedstale("report", runs, one, "-o", "page.html", "--title", "Mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("page.html: 6 runs in 1 setting,")  # the run that is named twice counts once
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "nowhere must be a folder of `fedstale run`, `reproduce` or `inspect`, but it is not there"),
        (["."], "but it has no runs in it"),
        ([], "runs must be a folder"),
        (["note.txt"], "but it is not a folder"),
        ([".", "-o", "page.pdf"], "--out must end in .html or .htm, got page.pdf"),
        ([".", "-o", "no/page.html"], "there is no folder no"),
    ],
)
def test_nonsense_gives_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    (tmp_path / "note.txt").write_text("x")
    done = fedstale("report", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_plotly_one_sentence_says_how_to_get_it(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    done = fedstale("report", runs, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fedstale: the report needs plotly: pip install 'fedstale[report]'\n"
