"""A figure of a few seconds, for tests of `reproduce` wherever its cells are computed."""

ALL = '[{ kind = "fedstale", beta = 0.8 }, "unbiased", "fedau"]'


def small_figure(
    *, seeds: str = "[1, 2]", rounds: int = 150, engine: str = "batched", algorithms: str = ALL,
    tune: str = "[tune]\nlr = [0.05, 0.02]",
) -> str:  # fmt: skip
    """The text of its TOML file."""
    return f"""
seeds = {seeds}
rounds = {rounds}
evaluate_every = 10
engine = "{engine}"
algorithms = {algorithms}
[data]
dataset = "quadratic"
clients = 6
noise = 0.1
[local]
lr = 0.02
[participation]
kind = "two-groups"
p_min = 0.2
[grid]
"participation.p_min" = [0.5, 0.2, 0.1]
{tune}
[figure]
paper = "amplified"
draw = "curves"
title = "a small one"
curves = true
[[figure.claims]]
text = "all is well"
check = "above"
first = "unbiased"
second = "fedau"
metric = "objective_last10"
lower = true
[scale.smoke]
reduced = "everything"
"""
