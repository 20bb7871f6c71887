"""A strategy of your own: the coordinate-wise median, compared with FedAvg if one client sends wrong updates."""

import numpy as np

import fedstale as fs


@fs.part
class Median:
    """The coordinate-wise median of the received updates, which one outlier cannot move."""

    def init(self, n, d):
        return None

    def aggregate(self, state, r):
        step = np.zeros_like(r.params)
        here = np.broadcast_to(r.arrived, r.updates.shape)
        some = here.any(axis=0)  # (d,) coordinates that arrived from at least one client
        step[some] = np.nanmedian(np.where(here, r.updates, np.nan)[:, some], axis=0)
        return step, state


if __name__ == "__main__":
    fs.testing.check_strategy(Median())
    centers = np.zeros((9, 2))
    centers[8] = 1000  # the outlier
    task = fs.Quadratic(centers, start=[5, 5])
    engine = fs.Serial(task, fs.Local(lr=0.1))
    for strategy in (fs.FedAvg(), Median()):
        *_, last = fs.simulate(engine, strategy, fs.Bernoulli(0.8), rounds=100)
        print(
            f"{strategy!r:10} ends {np.linalg.norm(last.params):8.2f} from the optimum of the other eight clients"
        )
