"""The figures of the papers: planned, computed, drawn, and their claims tested."""
