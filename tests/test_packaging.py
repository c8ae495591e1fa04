"""What installs: the wheel holds the package and nothing else, and the README's two commands exist."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_wheel_is_the_package_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = [n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n]
    assert {n.split("/")[0] for n in names} == {"blockforge"}
    assert not [n for n in names if "/tests/" in n or "/benchmarks/" in n or "/docs/" in n]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    rooms = {n.split("/")[1] for n in names if n.count("/") > 1}
    expected = {
        f"blockforge/{line}"
        for line in tracked.stdout.splitlines()
        if line.split("/")[0] in rooms or re.fullmatch(r"\w+\.py", line)
    }
    assert set(names) == expected


def test_the_readme_opens_with_the_two_commands():
    first = (ROOT / "README.md").read_text().split("```")[1]
    assert [line.split("#")[0].strip() for line in first.strip().splitlines()] == [
        "make demo",
        "make test",
    ]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {"demo", "test", "lint"} <= set(targets)


def test_ci_runs_what_a_laptop_runs():
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script and "make lint" in script


def test_every_command_of_the_readme_exists():
    from blockforge.cli import app

    commands = {c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands}
    named = set(re.findall(r"^\| `([\w-]+)", (ROOT / "README.md").read_text(), flags=re.M))
    assert named == commands
