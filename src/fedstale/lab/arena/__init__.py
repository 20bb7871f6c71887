"""The arena: rules for clients that come and go, scored on equal terms from the runs of a suite."""
