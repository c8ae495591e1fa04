"""Shared by every test: threads that wait do not burn a core that another process needs."""

import os

# Before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker a core: more threads would only take turns
    os.environ.setdefault("OMP_NUM_THREADS", "1")
