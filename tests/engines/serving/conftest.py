"""A bundle for every test of this folder, made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # serving_bundles, triton_rules

from serving_bundles import make_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    return make_bundle(tmp_path_factory.mktemp("served") / "chain")
