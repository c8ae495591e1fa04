"""Who may import whom: the house's table, held against the imports in the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "core": set(),
    "graph": {"core"},
    "model": {"core"},
    "plugins": {"core", "graph"},
    "export": {"core", "graph", "model", "plugins"},
    "engines": {"core", "graph", "plugins"},
    "validate": {"core", "graph", "model", "plugins", "engines"},
    "recipes": set(),
}
TOP = {
    *(
        "__init__.py",
        "__main__.py",
        "cli.py",
        "cli_bench.py",
        "cli_engines.py",
        "cli_junit.py",
        "cli_plans.py",
        "cli_precision.py",
        "cli_tools.py",
        "cli_trust.py",
        "console.py",
        "tables.py",
        "tables_plans.py",
    ),
    *("cli_polygraphy.py", "cli_proof.py", "cli_serving.py", "proof.py", "tables_proof.py"),
    "build_outlook.py",
    "inspection.py",
    *("recipe.py", "pipeline.py", "stages.py", "variants.py", "calibration.py", "conversion.py"),
    *("inference.py", "quantization.py", "schemas.py", "schemas_commands.py", "sections.py"),
}
LIGHT = [
    "cli.py",
    "cli_bench.py",
    "cli_engines.py",
    "cli_junit.py",
    "cli_plans.py",
    "cli_polygraphy.py",
    "cli_precision.py",
    "cli_proof.py",
    "cli_serving.py",
    "cli_tools.py",
    "cli_trust.py",
    "console.py",
    "tables.py",
    "__init__.py",
    "core/errors.py",
    "core/dtypes.py",
]
HEAVY = {
    "torch",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "numpy",
    "tensorrt_rtx",
    "matplotlib",
}
DOORS = {"engines/tensorrt_api.py"}  # the only file that imports TensorRT


def sources() -> list[str]:
    files = [*ROOT.glob("*.py"), *(f for room in ROOMS for f in (ROOT / room).rglob("*.py"))]
    return sorted(str(f.relative_to(ROOT)) for f in files)


def imports(tree: ast.AST, file: str) -> list[tuple[str, bool]]:
    """Every import as (absolute module path, at import time?); relative ones start with blockforge."""
    package = ["blockforge", *Path(file).parent.parts]
    found = []

    def visit(node: ast.AST, lazy: bool) -> None:
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            lazy = True
        if isinstance(node, ast.Import):
            found.extend((alias.name, not lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            else:
                module = node.module or ""
            found.extend((f"{module}.{alias.name}", not lazy) for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(tree, lazy=False)
    return found


def parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", sources())
def test_rooms_import_only_downwards(file):
    room = Path(file).parts[0]
    if room in TOP:
        return
    for module, _ in imports(parsed(file), file):
        parts = module.split(".")
        if parts[0] != "blockforge":
            continue
        other = parts[1] if len(parts) > 1 else ""
        assert other in ROOMS[room] | {room}, f"{file} imports {module}"


@pytest.mark.parametrize("file", sources())
def test_package_imports_are_relative(file):
    tree = parsed(file)
    named = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    named |= {
        n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and not n.level
    }
    assert not {n for n in named if n.split(".")[0] == "blockforge"}


@pytest.mark.parametrize("file", sources())
def test_one_door_to_tensorrt(file):
    tops = {module.split(".")[0] for module, _ in imports(parsed(file), file)}
    if file not in DOORS:
        assert not tops & {"tensorrt", "tensorrt_rtx"}


@pytest.mark.parametrize("file", LIGHT)
def test_the_command_line_starts_without_heavy_imports(file):
    eager = {module.split(".")[0] for module, at_import in imports(parsed(file), file) if at_import}
    assert not eager & HEAVY


def test_no_circles_between_files():
    graph = {}
    for file in sources():
        name = ".".join(["blockforge", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = {module for module, at_import in imports(parsed(file), file) if at_import}
    edges = {
        name: {
            target
            for module in modules
            for target in (module, module.rpartition(".")[0])
            if target in graph and target != name and not name.startswith(f"{target}.")
        }
        for name, modules in graph.items()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for target in edges[name]:
            walk(target, (*path, name))
        done.add(name)

    for name in edges:
        walk(name, ())


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_circles_between_the_folders_of_a_room(room):
    """Lazy imports included: two folders that need each other give what both need a place of its own."""
    arrows: dict[str, set[str]] = {}
    for file in sources():
        parts = Path(file).parts
        if parts[0] == room and len(parts) > 2:
            for module, _ in imports(parsed(file), file):
                other = module.split(".")
                if other[:2] == ["blockforge", room] and (ROOT / room / other[2]).is_dir():
                    arrows.setdefault(parts[1], set()).add(other[2])

    def reached(folder: str, seen: frozenset[str]) -> set[str]:
        found = arrows.get(folder, set()) - {folder} - seen
        return found | {x for f in found for x in reached(f, seen | found)}

    both = {
        f"{a} and {b}"
        for a in arrows
        for b in reached(a, frozenset())
        if a in reached(b, frozenset())
    }
    assert not both


def test_every_source_is_in_a_room():
    for file in sources():
        assert Path(file).parts[0] in ROOMS or file in TOP, f"{file} has no room"


def test_packages_are_listed():
    import tomllib

    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    folders = {Path(file).parent for file in sources()}
    assert listed == {".".join(["blockforge", *f.parts]) for f in folders}


@pytest.mark.parametrize("file", sources())
def test_files_stay_readable(file):
    lines = (ROOT / file).read_text(encoding="utf-8").count("\n")
    assert lines <= 300, f"{file} has {lines} lines: one idea per file"


@pytest.mark.parametrize("file", sources())
def test_public_functions_are_documented(file):
    def check(node: ast.AST, where: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                assert ast.get_docstring(child), f"{where}: class {child.name} has no docstring"
            if isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
                trivial = any("property" in ast.dump(d) for d in child.decorator_list)
                inside = isinstance(node, ast.ClassDef)
                if not (trivial or inside):
                    assert ast.get_docstring(child), f"{where}: {child.name} has no docstring"

    tree = parsed(file)
    assert ast.get_docstring(tree) or not tree.body, f"{file} has no module docstring"
    check(tree, file)
