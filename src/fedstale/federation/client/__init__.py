"""The clients: training.py answers an order, app.py makes a Flower ClientApp, inprocess.py needs no network."""
