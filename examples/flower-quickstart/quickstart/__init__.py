"""A Flower app with PyTorch: ten clients, of which five take part in one round out of ten."""
