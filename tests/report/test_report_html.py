"""The HTML report in a real browser: categories, figures, captions, no error, no network."""

import base64
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

# Clicks through every category and every figure, and writes what it saw at the end of the document.
VISITOR = r"""<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)));
const original = console.error;
console.error = (...words) => { errors.push(words.map(String).join(" ")); original(...words); };
addEventListener("load", async () => {
  const wait = time => new Promise(resolve => setTimeout(resolve, time));
  const app = () => document.getElementById("app");
  const links = () => [...app().querySelectorAll("a, button")];
  const click = async link => { link.click(); await wait(400); };
  const named = name => links().find(link => link.innerText.trim() === name);
  const seen = {menu: "", categories: {}};
  const eyes = () => links().filter(link => link.getAttribute("iconname") === "eye");
  const visit = async name => {
    await click(named(name));
    const page = {images: [], tables: [], captions: []};
    for (let i = 0; i < eyes().length; i++) {
      const target = eyes()[i].getAttribute("href");
      if (target !== "#") { page.tables.push(target); continue; }
      await click(eyes()[i]);
      const images = [...app().querySelectorAll("img:not(nav img)")];
      page.images.push(images.map(image => [image.naturalWidth, image.naturalHeight]));
    }
    await click(links().find(link => link.getAttribute("iconname") === "information-circle"));
    page.captions.push(app().innerText);
    return page;
  };
  try {
    await wait(1000);
    seen.menu = app().innerText;
    for (const name of seen.menu.split("RESULTS")[1].trim().split("\n")) {
      seen.categories[name] = await visit(name);
      await click(app().querySelector("ol li a"));  // home
    }
  } catch (error) {
    errors.push(`${error} at ${app().innerHTML}`);
  }
  const found = document.createElement("pre");
  found.id = "found";
  found.textContent = JSON.stringify({...seen, errors});
  document.body.append(found);
});
</script>"""


@pytest.fixture
def visited(report: Path, chromium: Callable[..., str], tmp_path: Path) -> dict[str, Any]:
    """What a visitor sees who clicks on everything."""
    text = report.read_text(encoding="utf-8")
    page = tmp_path / "visited.html"
    page.write_text(text.replace("<head>", f"<head>{VISITOR}", 1), encoding="utf-8")
    found = re.search(r'<pre id="found">(.*?)</pre>', chromium(page), re.DOTALL)
    assert found, "the visitor did not come to the end"
    return json.loads(html.unescape(found[1]))


def test_a_visitor_sees_every_category_figure_and_table_without_an_error(
    visited: dict[str, Any], finished: Any
) -> None:
    assert visited["errors"] == []
    assert {"Claims", "Corpus", "Loss", "Training"} <= set(visited["categories"])
    shown = [image for page in visited["categories"].values() for image in page["images"]]
    figures = list((finished.results / "tiny" / "figures").glob("*.svg"))
    assert len(shown) == len(figures)
    for image in shown:
        ((width, height),) = image  # one at a time
        assert min(width, height) > 100, "an image that did not load has no size"
    assert all(page["captions"] for page in visited["categories"].values())


def test_claims_have_their_caption_and_their_table(visited: dict[str, Any], finished: Any) -> None:
    page = visited["categories"]["Claims"]
    assert "One contradicted pair contradicts a claim" in page["captions"][0].replace("\n", " ")
    (table,) = page["tables"]
    content = base64.b64decode(table.partition("base64,")[2])
    assert content == (finished.results / "tiny" / "tables" / "claims.csv").read_bytes()


def test_it_is_small_and_loads_nothing(report: Path) -> None:
    assert report.stat().st_size < 20e6
    text = report.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|img|iframe)[^>]* src=[\"']?https?:", text)
    assert not re.findall(r"<link[^>]* href=[\"']?https?:", text)
