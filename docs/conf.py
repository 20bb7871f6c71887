"""Settings of the documentation site: `make docs` builds it into build/docs, with warnings as errors.

Sphinx with MyST and furo: pages stay plain Markdown that reads well in the repository, autodoc reads the
docstrings, and furo needs no remote script or font. MathJax sets the formulas and is copied beside the pages.
Nothing here uses the network.
"""

import sys
from pathlib import Path

import fedstale

sys.path.insert(0, str(Path(__file__).parent))

project = "fedstale"
author = "the fedstale contributors"
version = release = fedstale.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "site_extension",
    "site_symbols",
]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # site_extension turns a notebook into Markdown
exclude_patterns = ["held_out.md", "arena_results/*.md", "arena_clock/*.md"]  # parts of advise.md and arena.md
html_theme = "furo"
html_title = f"fedstale {version}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_show_copyright = False
html_copy_source = False
myst_heading_anchors = 4  # the anchors that GitHub gives to headings
myst_enable_extensions = ["colon_fence", "deflist", "html_image"]
myst_fence_as_directive = ["math"]  # ```math is a formula here as on GitHub
myst_links_external_new_tab = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # array types are long once they are resolved; shapes are in the docstrings
add_module_names = False
nitpicky = False
