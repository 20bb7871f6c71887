"""Sets symbols with an index, such as p_i, as formulas in the running text of the pages."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

SYMBOL = re.compile(  # p_i, p̂_i, Σ_S, p_min, η_c²
    r"(?<![\w.])([A-Za-zΑ-Ωα-ω])(\u0302?)_(min|max|avg|var|opt|[A-Za-z0-9])(²?)(?!\w)"
)
VERBATIM = (nodes.literal, nodes.literal_block, nodes.math, nodes.math_block, nodes.title, nodes.raw, nodes.comment)


def setup(app: Any) -> dict[str, bool]:
    app.add_transform(Symbols)
    return {"parallel_read_safe": True}


class Symbols(SphinxTransform):
    """Sets symbols with an index in running text as formulas."""

    default_priority = 700  # before the pages with formulas are counted, which load MathJax

    def apply(self, **kwargs: Any) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if SYMBOL.search(text) and not any(isinstance(parent, VERBATIM) for parent in _parents(text)):
                text.parent.replace(text, list(_symbols(text)))


def _parents(node: nodes.Node) -> Iterator[nodes.Node]:
    while node := node.parent:
        yield node


def _symbols(text: str) -> Iterator[nodes.Node]:
    """A text in pieces: what is between symbols, and each symbol as a formula."""
    end = 0
    for found in SYMBOL.finditer(text):
        letter, hat, index, squared = found.groups()
        head = rf"\hat{{{letter}}}" if hat else letter.replace("Σ", r"\textstyle\sum")
        tex = rf"{head}_{{\mathrm{{{index}}}}}" if len(index) > 1 else f"{head}_{index}"
        tex += "^2" if squared else ""
        yield from (nodes.Text(text[end : found.start()]), nodes.math(tex, tex))
        end = found.end()
    yield nodes.Text(text[end:])
