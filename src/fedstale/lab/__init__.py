"""The laboratory: plans, computes and stores runs, and asks questions of them."""
