"""The clients: training.py answers an order, and app.py makes a Flower ClientApp."""
