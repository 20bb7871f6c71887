"""Fed-CIS: seven nodes train one network with three exits, and answer requests together.

Four devices with the first exit, two edge servers with the second and a cloud with the third. Which exit
should count how much in training, when the devices answer most of the requests, or the cloud does?
"""

import torch

import fedstale as fs
from fedstale.data import federate, load
from fedstale.data.shares import by_layer
from fedstale.fed_cis import DATA_SHARES, SEVEN_NODES, WEIGHTINGS, everywhere, layered
from fedstale.fed_cis.networks import ExitCNN
from fedstale.fed_cis.sampling import ExitSampling
from fedstale.fed_cis.task import early_exit_task

ROUNDS = 40

if __name__ == "__main__":
    torch.set_num_threads(1)  # more only get in each other's way when layers are small
    digits = federate(load("digits"), by_layer(SEVEN_NODES, DATA_SHARES["equal"]), n=7, seed=0)
    print("served    weighting      weights of exits 1, 2, 3   accuracy of exits 1, 2, 3   served accuracy")
    for mix in ((80, 15, 5), (5, 15, 80)):  # % of the requests that each exit serves
        tree = layered(SEVEN_NODES, mix)
        sampling = ExitSampling(tree.exits)  # p = 0: every node trains its own exit
        for name, weighting in WEIGHTINGS.items():
            task = early_exit_task(
                digits, ExitCNN(), tree=tree, pairs=sampling.pairs(), weighting=weighting(), requests=everywhere
            )
            engine = fs.Serial(task, fs.Local(lr=0.2, steps=5, batch=32))
            *_, last = fs.simulate(engine, fs.Unbiased(), sampling, rounds=ROUNDS, seed=1, server=fs.Sgd(2.0))
            scores = task.evaluate(last.params)
            weights = "  ".join(f"{weight:.2f}" for weight in task.exit_weights)
            exits = "  ".join(f"{100 * scores[f'accuracy_exit_{e}']:4.1f}" for e in (1, 2, 3))
            served = "-".join(map(str, mix))
            print(f"{served:9} {name:14} {weights:26} {exits:27} {100 * scores['accuracy']:.1f} %")
    print("gradient variance of exits 1, 2, 3, at the start:", *(f"{v:.1e}" for v in task.variances()))
    print("and at the end:                                  ", *(f"{v:.1e}" for v in task.variances(last.params)))
