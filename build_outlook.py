"""What `build` would do with a recipe, told without doing it: graphs, engines, the cache, files.

Job -> BuildOutlook; no graph is made, no engine built, no file written
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .calibration import read_text
from .core.bundle import MANIFEST
from .engines.outlook import Outlook, outlook
from .sections import QUANTIZED
from .stages import GOLDEN, REPORT, Job
from .variants import quantize_options

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True, slots=True)
class GraphOutlook:
    """One graph. made: from what and how; options: of quantisation, none elsewhere; files: in the bundle."""

    precision: str
    made: str
    options: dict[str, Any]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineOutlook:
    """One engine of the graph in `precision`; its files are relative to the bundle."""

    precision: str
    engine: Outlook


@dataclass(frozen=True, slots=True)
class BuildOutlook:
    """Everything that a build would write to the folder `bundle`.

    replaces: whether an earlier bundle is there. blocks: of the model that is built. files: those beside graphs and engines.
    """

    recipe: str
    bundle: str
    replaces: bool
    model: str
    blocks: int
    graphs: tuple[GraphOutlook, ...]
    engines: tuple[EngineOutlook, ...]
    files: tuple[str, ...]

    @property
    def all_files(self) -> tuple[str, ...]:
        """Every file of the bundle, relative to it."""
        parts = [f for graph in self.graphs for f in graph.files]
        parts += [f for engine in self.engines for f in engine.engine.files]
        return tuple(sorted((*parts, *self.files)))

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types; an engine's fields stand beside its precision."""
        engines = [{"precision": e.precision} | asdict(e.engine) for e in self.engines]
        return asdict(self) | {"engines": engines}


def outlook_of(job: Job) -> BuildOutlook:
    """What a build of `job` would do.

    Raises UsageError for a text that cannot be read, for quantisation or build options that do not go together or that a
    target lacks, and UnavailableError for what is missing here.
    """
    from .engines.request import CompileRequest
    from .validate.polygraphy.write import files_written

    recipe = job.recipe
    for text in (recipe.calibration.text, recipe.validate_.text):
        read_text(text)
    graphs = tuple(_graph(job, name) for name in recipe.export.precisions)
    blocks = 1 if recipe.layer is not None else job.checkpoint.config.num_layers
    engines = tuple(
        EngineOutlook(
            name,
            _inside(
                name,
                outlook(
                    CompileRequest(
                        model=job.output / name / "model.onnx",
                        target=target,
                        profile=job.profile,
                        more_profiles=job.profiles[1:],
                        folder=job.output / name,
                        num_blocks=blocks,
                        options=recipe.engines.options,
                        plugins=recipe.engines.plugins,
                    )
                ),
            ),
        )
        for name in recipe.export.precisions
        for target in job.targets
    )
    return BuildOutlook(
        recipe=recipe.name,
        bundle=str(job.output),
        replaces=(job.output / MANIFEST).exists(),
        model=job.checkpoint.source,
        blocks=blocks,
        graphs=graphs,
        engines=engines,
        files=(MANIFEST, GOLDEN, REPORT, *files_written()),
    )


def _graph(job: Job, name: str) -> GraphOutlook:
    recipe = job.recipe
    files = [f"{name}/model.onnx", f"{name}/model.onnx.data"]
    packed = ", linears that read one input packed" if recipe.export.pack else ""
    if name not in QUANTIZED:
        made = "exported and verified" if name == "fp32" else "typed from the fp32 graph"
        return GraphOutlook(name, made + packed, {}, tuple(files))
    options = asdict(quantize_options(recipe, name))
    made = f"quantised from the {recipe.quantize.base} graph"
    if recipe.quantize.search is not None:
        made += ", after a search for linears to keep"
    return GraphOutlook(name, made, options, (*files, f"{name}/calibration.json"))


def _inside(name: str, engine: Outlook) -> Outlook:
    """The same with paths that start in the bundle."""
    from dataclasses import replace

    return replace(engine, files=tuple(f"{name}/{file}" for file in engine.files))


def render_outlook(found: BuildOutlook) -> "Group":
    """Two tables, then the files beside them."""
    from rich.console import Group
    from rich.markup import escape

    from .console import table
    from .tables_plans import options_text, sizes_text

    replaced = "an earlier bundle there would be replaced" if found.replaces else "a new folder"
    graphs = table(f"{found.recipe}: nothing is built", "graph", "how", "writes")
    for graph in found.graphs:
        how = [graph.made] + ([options_text(graph.options)] if graph.options else [])
        graphs.add_row(graph.precision, escape("\n".join(how)), "\n".join(graph.files))
    engines = table("engines", "graph", "target", "cache", "writes")
    for each in found.engines:
        engine = each.engine
        engines.add_row(
            each.precision, engine.target, escape(engine.cached), "\n".join(engine.files)
        )
    lines = []
    if found.engines:  # profiles and options are the recipe's, one for all
        profiles = found.engines[0].engine.profiles
        lines += [f"profile {n}  {sizes_text(profile)}" for n, profile in enumerate(profiles)]
    built = next((each.engine for each in found.engines if each.engine.options), None)
    if built is not None:
        lines.append(f"options    {options_text(built.options)}; plugins {built.plugins}")
    lines += [
        f"model      {found.model}, {found.blocks} {'block' if found.blocks == 1 else 'blocks'}",
        f"bundle     {found.bundle} ({replaced})",
        f"also       {', '.join(found.files)}",
    ]
    return Group(graphs, *([engines] if found.engines else []), *map(escape, lines))
