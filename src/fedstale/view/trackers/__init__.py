"""Bridges from stored runs to TensorBoard, Weights & Biases and MLflow, while they are computed or later."""
