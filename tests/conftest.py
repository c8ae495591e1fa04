"""Shared by every test: threads that wait do not burn a core that another process needs."""

import os
import subprocess
import sys

import pytest
from hypothesis import settings

# The same examples on every run; `--hypothesis-profile random` looks for new ones.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("random")
settings.load_profile("fixed")

# Before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker a core: more threads would only take turns
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def blockforge():
    """Runs the real command: exit codes and both streams are part of the promise."""

    def run(*arguments, cwd=None):
        return subprocess.run(
            [sys.executable, "-m", "blockforge", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=cwd,
            check=False,
        )

    return run
