"""Which samples each client holds.

A rule has one method, `split(labels, n, rng)`: n arrays of sample indices, disjoint. All but ByWriter
give every sample to some client. A client can come out empty where the rule allows it: `federate` warns.
"""

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedstale.core import BadInput, Count, Ids, Natural, PositiveFinite, Share, keep, part, require

DRAWS = 1000  # of proportions, before a minimum of samples is given up


@runtime_checkable
class Partition(Protocol):
    """A rule that divides samples among clients. Optional ability: NeedsWriters."""

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]: ...


@runtime_checkable
class NeedsWriters(Protocol):
    """A partition that, if `needs_writers`, splits by the writer of each sample instead of its label."""

    @property
    def needs_writers(self) -> bool: ...


@part
class IID:
    """Samples at random, the same number for every client (± 1)."""

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        check(labels, n)
        return np.array_split(rng.permutation(len(labels)), n)


@part
class Dirichlet:
    """The samples of each label go to the clients in proportions drawn from Dir(alpha, …, alpha).

    The usual rule, label by label: every sample is used and client sizes differ. Small alpha: a client
    holds few labels, and may hold nothing; large alpha: as IID, up to chance. Yurochkin et al., "Bayesian
    nonparametric federated learning of neural networks", ICML 2019; H. Wang et al., "Federated learning
    with matched averaging", ICLR 2020. With `min_samples` the proportions are drawn again until every client
    has so many samples, as is common in experiments.
    """

    alpha: PositiveFinite
    min_samples: Natural = 0

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        groups, best = by_label(labels, n, rng), 0
        need = f"dirichlet cannot give each of {n} clients {self.min_samples} samples (min_samples)"
        require(self.min_samples * n <= len(labels), f"{need}: there are {len(labels)}")
        for _ in range(DRAWS):
            counts = [rng.multinomial(len(mine), rng.dirichlet(np.full(n, self.alpha))) for mine in groups]
            fewest = int(np.sum(counts, axis=0).min())
            if fewest >= self.min_samples:
                break
            best = max(best, fewest)
        else:
            way = "take a larger alpha, fewer clients or fewer min_samples"
            raise BadInput(f"{need}: in {DRAWS} draws, some client had at most {best}; {way}")
        pieces = [np.split(mine, np.cumsum(count)[:-1]) for mine, count in zip(groups, counts, strict=True)]
        return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]


@part
class ClusteredDirichlet:
    """Clusters of neighbouring clients that differ as with Dirichlet(alpha), and are alike within.

    Client i belongs to cluster i · clusters // n, as in ClusteredMarkov.
    """

    alpha: PositiveFinite
    clusters: Count

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        check(labels, n)
        require(self.clusters <= n, f"{self.clusters} clusters need as many clients, got {n}")
        sizes = np.bincount(np.arange(n) * self.clusters // n)  # clients in each cluster
        clusters = Dirichlet(self.alpha).split(labels, self.clusters, rng)
        dealt = (np.array_split(rng.permutation(c), m) for c, m in zip(clusters, sizes, strict=True))
        return [mine for cluster in dealt for mine in cluster]


@part
class Shards:
    """Samples sorted by label and cut in n · per_client shards; each client gets `per_client` at random.

    A client holds about `per_client` labels. McMahan et al., "Communication-efficient learning of deep
    networks from decentralized data", AISTATS 2017.
    """

    per_client: Count = 2

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        count, ordered = n * self.per_client, np.concatenate(by_label(labels, n, rng))
        require(count <= len(labels), f"{count} shards need as many samples, got {len(labels)}")
        shards = np.array_split(ordered, count)
        dealt = rng.permutation(count).reshape(n, self.per_client)
        return [np.concatenate([shards[s] for s in mine]) for mine in dealt]


@part
class Majority:
    """One majority label per client, and a share `others` of each label spread over the other clients.

    Client i's majority label is number i · L // n of the L labels, so that clients of one label are
    neighbours: with n = 250 and ten labels, clients 0–24 hold the first. Wang & Ji, "A unified analysis
    of federated learning with arbitrary client participation", NeurIPS 2022, has others = 0.05. (Their
    code deals that share to *all* clients, so that a tenth of it comes home; here it does not.)
    """

    others: Share = 0.05

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        groups = by_label(labels, n, rng)
        require(n >= len(groups), f"majority needs a client for each of the {len(groups)} labels, got n = {n}")
        label = np.arange(n) * len(groups) // n  # (n,) majority label of each client
        pieces: list[list[Ids]] = [[] for _ in range(n)]
        for k, samples in enumerate(groups):
            elsewhere = rng.permutation(np.flatnonzero(label != k))
            away = round(self.others * len(samples)) if len(elsewhere) else 0
            for some, clients in ((samples[:away], elsewhere), (samples[away:], np.flatnonzero(label == k))):
                for client, piece in zip(clients, np.array_split(some, max(len(clients), 1)), strict=False):
                    pieces[client].append(piece)
        return [np.concatenate(mine) for mine in pieces]


@part
class ByWriter:
    """The natural partition: a client is a person, with the samples that this person wrote.

    n people are drawn at random, or with `largest` the n with the most samples, and are numbered at
    random; what the others wrote is not used. QMNIST names 836 writers of MNIST's 70,000 digits (539 of
    the training set, 297 of the test set): Yadav & Bottou, "Cold case: the lost MNIST digits", NeurIPS 2019.
    """

    largest: bool = False
    needs_writers: ClassVar[bool] = True

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        people = by_label(labels, n, rng)
        require(n <= len(people), f"by-writer needs a writer for each client: n <= {len(people)}, got {n}")
        if self.largest:
            people = sorted(people, key=len, reverse=True)[:n]
        return [people[i] for i in rng.permutation(len(people))[:n]]


def check(labels: Ids, n: int) -> None:
    """Refuse a number of clients that the samples cannot serve."""
    require(n >= 1, f"the number of clients must be at least 1, got {n}")
    require(n <= len(labels), f"{n} clients need at least as many samples, got {len(labels)}")


def by_label(labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
    """The indices of the samples of each label that occurs, in random order, labels ascending, for n clients."""
    check(labels, n)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


@part
class Shares:
    """Samples at random: client i gets shares[i] / Σ shares of them, to the nearest whole sample."""

    shares: npt.ArrayLike

    def __post_init__(self) -> None:
        shares = np.array(self.shares, np.float64)
        ok = shares.ndim == 1 and shares.size > 0 and bool((shares >= 0).all()) and 0 < shares.sum() < np.inf
        require(ok, f"shares must be numbers of at least 0, one for each client and not all 0, got {self.shares!r}")
        keep(self, "shares", shares)

    def split(self, labels: Ids, n: int, rng: np.random.Generator) -> list[Ids]:
        shares = np.asarray(self.shares)
        require(len(shares) == n, f"{n} clients need {n} shares, got {len(shares)}")
        cuts = np.rint(np.cumsum(shares)[:-1] / shares.sum() * len(labels)).astype(np.int64)
        return np.split(rng.permutation(len(labels)), cuts)


def by_layer(widths: tuple[int, ...], shares: tuple[float, ...]) -> Shares:
    """Every layer of a tree holds its share, the same for each of its nodes."""
    each = [share / width for width, share in zip(widths, shares, strict=True)]
    return Shares(np.repeat(each, widths))
