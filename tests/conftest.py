"""Shared by every test: threads that wait do not burn a core that another process needs."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its threads
