"""What all tests share: they are deterministic, and numbers do not depend on the machine's threads."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("fedstale", derandomize=True, deadline=None)
settings.load_profile("fedstale")
