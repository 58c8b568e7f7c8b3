"""How members of a package's archive become documents: one generator per format of the catalogue.

Each takes an open member and yields rows; a row is what shards share out, so that only its own shard pays for
parsing it. `parse` turns a row into its texts.
"""

import bz2
import contextlib
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import mwparserfromhell


@dataclass(frozen=True, slots=True)
class Format:
    """A reader of rows and a parser of one row.

    rows: open member -> encoded rows. parse: decoded row -> (texts, the page they belong to or None).
    """

    rows: Callable[[IO[bytes]], Iterator[bytes]]
    parse: Callable[[str], tuple[list[str], str | None]]
    page_is_member: bool = False  # texts of one member are split together


SHORTEST = 500  # characters


def merge_short(parts: list[str], joint: str) -> list[str]:
    """Neighbouring parts of a page joined until each has `SHORTEST` characters, or the page is one: a bare
    heading or a three-word section is no document to score."""
    merged: list[str] = []
    for part in parts:
        if merged and len(merged[-1]) < SHORTEST:
            merged[-1] += joint + part
        else:
            merged.append(part)
    if len(merged) > 1 and len(merged[-1]) < SHORTEST:
        last = merged.pop()
        merged[-1] += joint + last
    return merged


# --- MediaWiki ----------------------------------------------------------------------------------------

# Sections that are lists of links and sources, in the words of English Wikipedia.
_LINK_SECTIONS = frozenset(
    (
        *("bibliography", "citations", "external links", "footnotes", "further reading", "gallery", "notes"),
        *("notes and references", "publications", "references", "see also", "sources", "works cited"),
    )
)
_NO_PROSE = frozenset(("ref", "references", "table", "gallery", "timeline"))
_TOP_HEADING = re.compile(r"^==(?!=)(.*?)==[ \t]*$", re.MULTILINE)
_NAMESPACE_LINK = re.compile(
    r"\s*:?\s*(?:file|image|category|media|[a-z]{2,3}(?:-[a-z]+)*)\s*:", re.IGNORECASE
)


def _pages(file: IO[bytes]) -> Iterator[bytes]:
    """The pages of a bzip2-compressed MediaWiki export that are articles and not redirects: title, newline,
    wikitext."""
    with bz2.open(file) as export:
        for _, element in ET.iterparse(export):
            namespace, brace, tag = element.tag.rpartition("}")
            if tag != "page":
                continue
            space = namespace + brace
            is_article = element.findtext(f"{space}ns") == "0" and element.find(f"{space}redirect") is None
            text = element.findtext(f"{space}revision/{space}text")
            if is_article and text:
                yield f"{element.findtext(f'{space}title')}\n{text}".encode()
            element.clear()


def _page_sections(row: str) -> tuple[list[str], str | None]:
    title, _, wikitext = row.partition("\n")
    parts = _TOP_HEADING.split(wikitext)
    sections = [(title, parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
    texts = (_plain(f"{heading.strip()}\n\n{body}") for heading, body in sections if _is_prose(heading))
    return merge_short([text for text in texts if "\n" in text], "\n\n"), title  # a heading alone is no text


def _is_prose(heading: str) -> bool:
    return heading.strip().lower() not in _LINK_SECTIONS


def _plain(wikitext: str) -> str:
    """Wikitext without markup, templates, tables, references, pictures and categories."""
    code = mwparserfromhell.parse(wikitext)
    for link in code.filter_wikilinks(
        recursive=True, matches=lambda link: bool(_NAMESPACE_LINK.match(str(link.title)))
    ):
        _remove(code, link)
    for tag in code.filter_tags(matches=lambda tag: str(tag.tag).lower() in _NO_PROSE):
        _remove(code, tag)
    lines = (" ".join(line.split()) for line in code.strip_code().splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _remove(code: mwparserfromhell.wikicode.Wikicode, node: mwparserfromhell.nodes.Node) -> None:
    with contextlib.suppress(ValueError):  # it went away with a node around it
        code.remove(node)


# --- reStructuredText ---------------------------------------------------------------------------------

_ADORNMENT = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*$")


def rst_sections(text: str) -> list[str]:
    """Top-level sections of a reStructuredText document; the text before the first is one of them.

    A heading is a line with an underline of one repeated punctuation mark, at least as long, and possibly an
    overline of the same. Styles rank by first appearance; if the first is used once it is the document's
    title and the second style marks the top-level sections, as Docutils promotes a lone title.
    """
    lines = text.splitlines()
    headings = list(_rst_headings(lines))
    styles = list(dict.fromkeys(style for _, style in headings))
    if not styles:
        return [text]
    lone_title = sum(style == styles[0] for _, style in headings) == 1
    if lone_title and len(styles) == 1:
        return [text]
    top = styles[1] if lone_title else styles[0]
    return _cut(lines, [at for at, style in headings if style == top])


def _cut(lines: list[str], starts: list[int]) -> list[str]:
    """The text cut before each line of `starts`, short parts merged."""
    bounds = [0, *(at for at in starts if at > 0), len(lines)]
    return merge_short(
        ["\n".join(lines[start:end]).strip("\n") for start, end in itertools.pairwise(bounds)], "\n\n"
    )


def _rst_headings(lines: list[str]) -> Iterator[tuple[int, tuple[str, bool]]]:
    """(first line, (mark, has an overline)) of each heading."""
    for at in range(1, len(lines)):
        title, under = lines[at - 1], lines[at]
        if not _ADORNMENT.match(under) or len(under.rstrip()) < len(title.strip()) or not title.strip():
            continue
        if _ADORNMENT.match(title):
            continue
        over = at >= 2 and lines[at - 2].rstrip() == under.rstrip()
        if over:
            yield at - 2, (under[0], True)
        elif title[0] != " " and (at < 2 or not lines[at - 2].strip()):
            yield at - 1, (under[0], False)


# --- Python ---------------------------------------------------------------------------------------------

_DEFINITION = re.compile(r"(?:@|def |async def |class )")


def python_definitions(text: str) -> list[str]:
    """A module cut before its top-level definitions, each with its decorators and the comments above it.

    By lines, not by a parser: which texts come out must not depend on the reader's Python. Inside a string, a
    definition at the start of a line is cut too, which is rare and does no harm.
    """
    lines = text.splitlines()
    starts = []
    for at, line in enumerate(lines):
        if _DEFINITION.match(line) and not (at and lines[at - 1].startswith(("@", ")"))):
            while at and lines[at - 1].startswith("#"):
                at -= 1
            starts.append(at)
    return _cut(lines, starts)


# --- JSON Lines of verses -----------------------------------------------------------------------------


def _chapters(file: IO[bytes]) -> Iterator[bytes]:
    """Neighbouring verses of one chapter: a line with its name, then a line a verse."""
    verses = (json.loads(line) for line in file)
    for (book, chapter), group in itertools.groupby(
        verses, key=lambda verse: (verse["book"], verse["chapter"])
    ):
        yield "\n".join([f"{book} {chapter}", *(verse["text"] for verse in group)]).encode()


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    return (line.rstrip(b"\r\n") for line in file)


def _whole(file: IO[bytes]) -> Iterator[bytes]:
    yield file.read()


def _one(text: str) -> tuple[list[str], str | None]:
    return [text], None


FORMATS = {
    "mediawiki": Format(_pages, _page_sections),
    "lines": Format(_lines, _one),
    "verses": Format(_chapters, _one),
    "rst": Format(_whole, lambda text: (rst_sections(text), None), page_is_member=True),
    "python": Format(_whole, lambda text: (python_definitions(text), None), page_is_member=True),
    "file": Format(_whole, _one),
}
