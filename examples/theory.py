"""Which β, κ̄², Λ̃, γ, η and P does the theory of each paper advise for my clients? `python examples/theory.py`

Measures twelve clients, prints what each paper advises for them, and draws its bound to theory.png.
"""

import math
import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import fedstale as fs

theory, STEPS = fs.theory, 5
task = fs.Quadratic.random(12, 3, seed=1, noise=0.5)  # your task
rows = fs.participation.Markov(np.repeat([0.9, 0.2], 6), 0.6).rows(12, fs.stream(1, "presence"))
here = np.array([next(rows) for _ in range(400)])  # your recording, rounds × clients
p, w = here.mean(axis=0), task.optimum()
L, mu, noise = float(task.curvature.max()), float(task.curvature.min()), 3 * 0.5**2  # of quadratics they are known
differ = theory.heterogeneity(task, w, draws=200)
excess = task.objective(task.init(0)) - task.objective(w)
distance = float(np.linalg.norm(task.init(0) - w))
figure, axes = plt.subplots(1, 5, figsize=(18, 3.2), layout="constrained")


def fedstale(place):
    """FedStale, Theorem 1 and (14): the bound over β."""
    problem = theory.Problem(L, noise, differ.diversity, STEPS, client_lr=1 / (8 * L * STEPS))
    betas = np.linspace(0, 1, 21)
    totals = [theory.bound(problem, p, b, rounds=10**5, server_lr=0.05, excess=excess).total() for b in betas]
    place.plot(betas, totals)
    place.set(title="FedStale: bound over β", xlabel="β")
    best, most = theory.best_beta(problem, p), theory.limits(p, 0.5, smoothness=L, steps=STEPS)
    return f"β* = {best:.3f}; with β = 0.5, η_c up to {most.client:.3f}, η_s up to {most.server:.3f}"


def ca_fed(place):
    """CA-Fed: the bound of Theorem 2.3.3 over the correlation, the weights that make errors least, and κ̄²."""
    convex = theory.Correlated(
        smoothness=L, noise=noise, gap=differ.largest_gap, diameter=2 * distance, gradient=L * distance,
        stochastic_gradient=L * distance + math.sqrt(noise), loss_range=float(differ.losses.max()), steps=STEPS,
    )  # fmt: skip
    q, memories = np.full(12, 1 / 12), (0.1, 0.3, 0.5, 0.7, 0.9)
    rates = theory.rate_limit(L, STEPS, q.sum()) / np.arange(1, 4001) ** 0.75

    def bound(memory):
        chain = theory.mixing(*(theory.two_state(x, memory) for x in p))
        return theory.correlated_bound(convex, q, p, chain, rates=rates)

    place.semilogy(memories, [bound(memory).opt() for memory in memories])
    place.set(title="CA-Fed: ε_opt over the eigenvalue λ", xlabel="λ")
    found = bound(float(np.median(theory.summary(here).mixing)))
    alone = int((theory.best_weights(found.sigma, found.v, p, total=1.0) > 0).sum())
    best = theory.least_error_weights(found, p, 1.0, target=q, condition=L / mu, gap=differ.largest_gap)
    share = best[p < np.median(p)].sum()
    advice = f"ε_opt alone keeps {alone} of 12, the whole error gives the rare half {share:.0%}"
    return f"{advice}; κ̄² ≤ (L/μ)² = {(L / mu) ** 2:.3g}"


def lossy(place):
    """UPGA-PL, Theorem 4.3.1, and DMA-PL, (4.3): errors over the rounds where one link in two is bad."""
    problem = theory.Lossy(L, mu, noise, differ.gap, L * distance + math.sqrt(noise), steps=1)
    q, t = np.repeat([0.1, 0.9], 6), np.unique(np.logspace(0, 6, 61).astype(int))
    upga = [theory.upga_bound(problem, q, int(k), distance=distance) for k in t]
    dma = [theory.dma_bound(problem, q, int(k), zeta1=differ.diversity, zeta2=0.1, excess=excess) for k in t]
    place.loglog(t, upga, label="UPGA-PL")
    place.loglog(t, [found.total() for found in dma], label="DMA-PL")
    place.legend()
    place.set(title="Lossy links: bounds over the rounds", xlabel="rounds")
    first = next((int(k) for k, up, down in zip(t, upga, dma, strict=True) if up < down.total()), None)
    return f"UPGA-PL from {first} rounds on, DMA-PL for fewer; DMA-PL's error stays at {dma[-1].floor:.3g}"


def fed_cis(place):
    """Fed-CIS, Theorem 5.3.1: the bound as Λ̃ moves from equal weights to the serving rates."""
    nodes = theory.Exits(smoothness=L, convexity=mu, noise=[noise, noise / 4], gap=differ.largest_gap,
                         diameter=2 * distance, largest_loss=float(differ.losses.max()), steps=STEPS)  # fmt: skip
    served, shares = np.array([0.9, 0.1]), np.linspace(0, 1, 21)
    totals = []
    for share in shares:
        used = share * served + (1 - share) * 0.5
        found = theory.exit_bound(nodes, [100, 100, 400], [[1.0, 0.0], [1.0, 0.0], [0.2, 0.8]], used, target=served,
                                  dimensions=[10, 20], rounds=1000, distance=distance, constant=1.0)  # fmt: skip
        totals.append(found.total())
    place.plot(shares, totals)
    place.set(title="Fed-CIS: bound from Λ̃ = 1/E to Λ̃ = Λ", xlabel="share of Λ")
    return f"Λ̃ = {shares[int(np.argmin(totals))]:.2f} Λ + the rest 1/E"


def amplified(place):
    """Amplified updates, Corollary 3.2: (9) over the period P."""
    problem = theory.Amplify(
        L, noise, excess, STEPS, rounds=10_000, concentration=1 / math.sqrt(here.sum(1).mean())
    )
    periods = np.arange(1, 201)
    totals = [
        theory.corollary_bound(problem, int(P), within=differ.diversity, between=differ.diversity,
                               participation=theory.delta2(here, int(P), divergence=differ.diversity)).total()
        for P in periods
    ]  # fmt: skip
    place.loglog(periods, totals)
    place.set(title="Amplified: bound (9) over P", xlabel="P")
    advice = theory.amplification(problem, here, divergence=differ.diversity)
    return f"γ = {advice.client_lr:.2g}, η = {advice.factor:.3g}, P = {advice.period}"


for draw, place in zip((fedstale, ca_fed, lossy, fed_cis, amplified), axes, strict=True):
    print(f"{draw.__name__:10} {draw(place)}")
target = Path(sys.argv[1] if len(sys.argv) > 1 else "theory.png")
figure.savefig(target, dpi=120)
print(f"picture: {target}")
