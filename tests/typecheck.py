"""Run mypy over the package, whose root is the repository itself.

mypy finds packages by folder name, so the check sees the root through a link called `blockforge`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Return mypy's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "blockforge").symlink_to(ROOT)
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--config-file",
                str(ROOT / "pyproject.toml"),
                "--cache-dir",
                str(ROOT / ".mypy_cache"),
                "-p",
                "blockforge",
            ],
            cwd=folder,
            env={"MYPYPATH": folder, "PATH": ""},
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
