"""These tests need Flower: `make test-flower` runs them, in an environment of their own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
