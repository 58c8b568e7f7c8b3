import bz2
import html
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqarch.corpus.sources.extract import FORMATS, SHORTEST, merge_short, python_definitions, rst_sections

FILLER = "Filler text that makes a section long enough to stand alone. " * 10

PAGE = f"""{{{{Infobox|name=x}}}}
'''Foo''' is a [[bar|thing]].<ref>A source.</ref> {FILLER}
[[File:foo.jpg|thumb|A caption]] [[Category:Foos]]

== History ==
It began in [[1900]].<ref name="a" /> {FILLER}
=== Early ===
A subsection.
{{| class="wikitable"
| cell
|}}

== See also ==
* [[Baz]]

== Uses==
Many &ndash; {FILLER}
"""


def export(pages: list[tuple[str, str, str]]) -> bytes:
    body = "".join(
        f"<page><title>{title}</title><ns>{ns}</ns><id>1</id>"
        + ("<redirect title='x' />" if text.startswith("#REDIRECT") else "")
        + f"<revision><id>2</id><text>{html.escape(text)}</text></revision></page>"
        for title, ns, text in pages
    )
    return bz2.compress(
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">{body}</mediawiki>'.encode()
    )


def parse(name: str, data: bytes) -> list[tuple[list[str], str | None]]:
    return [FORMATS[name].parse(row.decode()) for row in FORMATS[name].rows(io.BytesIO(data))]


def test_mediawiki_pages_become_sections_without_markup() -> None:
    data = export([("Foo", "0", PAGE), ("Old", "0", "#REDIRECT [[Foo]]"), ("Talk:Foo", "1", "chat")])
    [(sections, page)] = parse("mediawiki", data)
    assert page == "Foo"
    assert [section.split("\n")[0] for section in sections] == ["Foo", "History", "Uses"]
    assert sections[0].startswith("Foo\n\nFoo is a thing.")
    assert "It began in 1900." in sections[1]
    assert "Early\nA subsection." in sections[1]
    assert "Many – Filler" in sections[2]
    gone = ("[[", "{{", "'''", "<ref", "A source", "thumb", "caption", "Category", "cell", "Baz", "&ndash;")
    assert [mark for mark in gone if mark in "".join(sections)] == []


def test_restructured_text_is_cut_at_its_top_sections() -> None:
    def section(title: str, mark: str) -> str:
        return f"{title}\n{mark * len(title)}\n\n{FILLER}"

    parts = [
        f"=====\nTitle\n=====\n\n{FILLER}",
        "\n\n".join([section("First", "-"), section("Inner", "~"), "A table::\n\n   ====\n   cell\n   ===="]),
        section("Second", "-"),
    ]
    assert rst_sections("\n\n".join(parts)) == [part.strip("\n") for part in parts]


def test_restructured_text_without_a_lone_title() -> None:
    text = f"One\n===\n\n{FILLER}\n\nTwo\n===\n\n{FILLER}"
    assert [section.split("\n")[0] for section in rst_sections(text)] == ["One", "Two"]
    assert rst_sections(FILLER) == [FILLER]
    assert rst_sections(f"Only\n====\n\n{FILLER}") == [f"Only\n====\n\n{FILLER}"]


def test_python_is_cut_before_top_level_definitions() -> None:
    body = "    x = 1\n" * 100
    decorated = f"# About f.\n@cache\n@other(\n    1,\n)\ndef f():\n{body}"
    text = f"import a\n{body}\n{decorated}\nclass C:\n    def m(self):\n{body}"
    starts = [part.split("\n")[0] for part in python_definitions(text)]
    assert starts == ["import a", "# About f.", "class C:"]


@pytest.mark.parametrize("cut", [rst_sections, python_definitions])
def test_cutting_loses_no_line(cut: object) -> None:
    source = (Path(__file__).parents[2] / "src/seqarch/corpus/filter.py").read_text()
    parts = cut(source)  # type: ignore[operator]
    assert [line for line in "\n".join(parts).splitlines() if line] == [
        line for line in source.splitlines() if line
    ]


@given(st.lists(st.text("ab", min_size=1, max_size=2 * SHORTEST), max_size=8))
def test_short_parts_are_joined_and_nothing_is_lost(parts: list[str]) -> None:
    merged = merge_short(parts, "|")
    assert "|".join(merged) == "|".join(parts)
    assert len(merged) <= 1 or min(map(len, merged)) >= SHORTEST


def test_verses_become_chapters() -> None:
    verses = [("Genesis", 1, "In"), ("Genesis", 1, "And"), ("Genesis", 2, "Thus"), ("Exodus", 2, "Now")]
    rows = [{"book": book, "chapter": chapter, "text": text} for book, chapter, text in verses]
    data = "\n".join(map(json.dumps, rows)).encode()
    assert parse("verses", data) == [
        (["Genesis 1\nIn\nAnd"], None),
        (["Genesis 2\nThus"], None),
        (["Exodus 2\nNow"], None),
    ]


def test_lines_and_files() -> None:
    assert parse("lines", b"one\r\ntwo\n\nthree") == [
        (["one"], None),
        (["two"], None),
        ([""], None),
        (["three"], None),
    ]
    assert parse("file", b"one\ntwo\n") == [(["one\ntwo\n"], None)]
