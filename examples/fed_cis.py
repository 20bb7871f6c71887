"""Fed-CIS: seven nodes train one network with three exits, and answer requests together.

Four devices with the first exit, two edge servers with the second and a cloud with the third. Which exit
should count how much in training, when the devices answer most of the requests, or the cloud does?
"""

import torch

import fedstale as fs
from fedstale import data, fed_cis

ROUNDS = 40

if __name__ == "__main__":
    torch.set_num_threads(1)  # more threads slow each other down if layers are small
    nodes = fed_cis.SEVEN_NODES
    rule = data.by_layer(nodes, fed_cis.DATA_SHARES["equal"])
    digits = data.federate(data.load("digits"), rule, n=7, seed=0)
    print("served    weighting      weights of exits 1, 2, 3   accuracy of exits 1, 2, 3   served accuracy")
    for mix in ((80, 15, 5), (5, 15, 80)):  # % of the requests that each exit serves
        tree = fed_cis.layered(nodes, mix)
        sampling = fs.fed_cis.ExitSampling(tree.exits)  # p = 0: every node trains its own exit
        for name, weighting in fs.registry.WEIGHTINGS.items():
            task = fs.fed_cis.early_exit_task(
                digits,
                fs.fed_cis.ExitCNN(),
                tree=tree,
                pairs=sampling.pairs(),
                weighting=weighting(),
                requests=fed_cis.everywhere,
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
