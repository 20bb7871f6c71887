"""A Flower app: the same model and data as in the simulation that it is compared with."""
