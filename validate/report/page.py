"""Write report.html: the manifest, the layers files beside it, and figures, in one page without outside parts."""

from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from ...core.dtypes import dtype_from_name
from ...core.manifest import Manifest
from .flow import flow_plots, legend_html
from .headroom import headroom_plots
from .latency import latency_view, size_name
from .numbers import number
from .plots import layer_plots, ratio_plots
from .toml import toml_from_dict
from .ulps import bin_name, ulp_plots
from .view import block_kernels, edge_types, engine_rows, headline, judged_by, yardstick

REPORT = "report.html"


def write_report(folder: Path, manifest: Manifest) -> Path:
    """Write `folder`/report.html and return its path.

    folder: the bundle's (its layers files and latencies are read, none need exist). Every number on the page that is not
    marked as derived stands in the manifest or the latencies, in full in the `value` attribute. The page loads
    nothing, runs no script, and follows the reader's light or dark setting. Raises ArtefactError for a file that is
    damaged.
    """
    page = _environment().get_template("page.html.j2")
    html = page.render(
        manifest=manifest,
        headline=headline(manifest),
        rows=engine_rows(manifest),
        blocks=block_kernels(folder, manifest),
        layer_plots={v.precision: layer_plots(v) for v in manifest.variants},
        headroom_plots={v.precision: headroom_plots(v) for v in manifest.variants},
        ratio_plots={v.precision: ratio_plots(v) for v in manifest.variants},
        ulp_plots={v.precision: ulp_plots(v) for v in manifest.variants},
        latency=latency_view(folder, manifest),
        recipe=toml_from_dict(manifest.recipe),
        style=Markup(_part("page.css")),
    )
    path = folder / REPORT
    path.write_text(html, encoding="utf-8")
    return path


def _part(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_part),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.globals |= {
        "judged_by": judged_by,
        "yardstick": yardstick,
        "edge_types": edge_types,
        "largest": _largest,
        "bin_name": bin_name,
        "size_name": size_name,
        "flow_plots": flow_plots,
        "flow_legend": legend_html(),
    }
    return environment


def _largest(precision: str) -> float:
    """The largest finite number of a float dtype."""
    import torch

    return float(torch.finfo(dtype_from_name(precision).torch).max)
