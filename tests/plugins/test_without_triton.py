"""A machine without Triton knows the operators all the same, and says what a kernel would need."""

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["triton"] = None
from blockforge.core.errors import UnavailableError
from blockforge.plugins.listing import list_plugins, plugin_ptx, plugins_markdown
from blockforge.plugins.policy import plugin_policy
from blockforge.plugins.registry import plugin_named

assert len(list_plugins()) == 17 and list_plugins()[0].registers
assert plugin_named("RMSNorm").body.name == "RMSNorm"
assert plugins_markdown().count("### blockforge::") == 17
assert plugin_policy("auto", ["RMSNorm"], runtime="tensorrt", arch=90)
try:
    plugin_ptx("RMSNorm")
except UnavailableError as error:
    print(error)
"""


def test_without_triton():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "compile a kernel: Triton is not installed. Run: pip install 'blockforge[gpu]'\n"
    )
