"""The page in a real browser, on a narrow and a wide screen: it fits, text in figures can be read, nothing is asked for."""

import json
import re
import shutil
import subprocess

import pytest

from .latencies import bench
from .pages import manifest, save_kernels, written

LOOK = """
f.onload = () => {
  const found = [];
  for (const width of [400, 1200]) {
    f.style.width = width + 'px';
    const page = f.contentDocument, root = page.documentElement;
    page.querySelectorAll('details').forEach(d => d.open = true);
    let smallest = 99, outside = [];
    for (const svg of page.querySelectorAll('svg')) {
      const box = svg.getBoundingClientRect();
      if (!box.width) continue;
      for (const text of svg.querySelectorAll('text')) {
        const at = text.getBoundingClientRect();
        const size = parseFloat(f.contentWindow.getComputedStyle(text).fontSize);
        smallest = Math.min(smallest, size * box.width / svg.viewBox.baseVal.width);
        if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
          outside.push(text.textContent);
      }
    }
    const captions = [...page.querySelectorAll('caption')].map(c => c.offsetHeight);
    const figures = [...page.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).length;
    found.push({scroll: root.scrollWidth, client: root.clientWidth, caption: Math.max(...captions), smallest, outside, figures});
  }
  const asked = f.contentWindow.performance.getEntriesByType('resource').map(e => e.name);
  document.title = JSON.stringify({found, asked});
};
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_real_browser_lays_it_out(tmp_path):
    """A page of our own holds the report in a frame and measures it."""
    save_kernels(tmp_path)
    written(tmp_path, manifest(bench=bench(tmp_path)), figures=True)
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<meta charset=utf-8><iframe id=f src=report.html style='width:400px;height:800px'></iframe><script>{LOOK}</script>"
    )
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    browser += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
    browser += ["--enable-logging=stderr", "--window-size=1300,900"]
    done = subprocess.run(
        [*browser, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1].replace("&amp;", "&"))
    assert seen["asked"] == []
    assert "CONSOLE" not in done.stderr
    for found, width in zip(seen["found"], (400, 1200), strict=True):
        assert found["scroll"] <= found["client"] <= width
        assert found["caption"] < 120  # a few lines, not one word under the other
        assert found["outside"] == [] and found["smallest"] >= 10
        assert (
            found["figures"] == 9
        )  # ratios, layers and ulps of two precisions, kernels, two sizes of latency
