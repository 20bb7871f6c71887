"""The released clients' SGD: without what it keeps it is ours, and what it keeps joins the rounds into one."""

import kept_momentum
import numpy as np

import fedstale as fs


def test_without_kept_momentum_the_loop_does_what_our_own_sgd_does() -> None:
    task = kept_momentum.make_task(iid=False, clients=12)
    ours = {"momentum": kept_momentum.MOMENTUM}
    params = []
    for own in (ours, {"train": kept_momentum.sgd(kept=False)}):
        engine = fs.Serial(task, fs.Local(lr=0.01, epochs=2, batch=32, drop_last=True, **own))
        *_, s = fs.simulate(engine, kept_momentum.RULES["CA-Fed"], fs.Bernoulli(0.5), rounds=5, seed=1)
        params.append(s.params)
    np.testing.assert_allclose(*params, atol=1e-5)
    assert np.abs(params[0]).max() > 0.1


def test_a_client_that_is_alone_and_keeps_its_momentum_trains_as_in_one_long_round() -> None:
    task = kept_momentum.make_task(iid=False, clients=1)
    params = []
    for kept, rounds, epochs in ((True, 6, 1), (True, 1, 6), (False, 6, 1)):
        local = fs.Local(lr=0.01, epochs=epochs, batch=500, train=kept_momentum.sgd(kept))  # all samples in a batch
        *_, s = fs.simulate(fs.Serial(task, local), fs.FedAvg(), fs.Bernoulli(1.0), rounds=rounds, seed=1)
        params.append(s.params)
    np.testing.assert_allclose(params[0], params[1], atol=1e-6)
    assert np.abs(params[0] - params[2]).max() > 0.01


def test_the_released_server_is_torchs_sgd() -> None:
    import torch

    rng, server = np.random.default_rng(1), kept_momentum.Released(0.3)
    w, v = rng.normal(size=4).astype(np.float32), server.init(4)
    theirs = torch.from_numpy(w.copy()).requires_grad_()
    optimizer = torch.optim.SGD([theirs], 0.3, momentum=0.9, weight_decay=0.01)
    for step in rng.normal(size=(3, 4)).astype(np.float32):
        change, v = server.apply(v, w, step)
        w = w + change
        theirs.grad = torch.from_numpy(-step)
        optimizer.step()
    np.testing.assert_allclose(w, theirs.detach().numpy(), rtol=1e-5)
