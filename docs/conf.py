"""How the site is built: `make docs`. Nothing is fetched, neither to build it nor to read it; warnings are errors."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent.resolve()
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "src")]

from site_parts import cells, docstrings, freshness, gallery, links, mathml, reference

import smadmm

project = "smadmm"
author = "The smadmm authors"
copyright = author
version = release = smadmm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode",
              "sphinx_gallery.gen_gallery", "sphinx_copybutton", "sphinx_design"]  # fmt: skip
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "site_parts", "gallery/**/*.ipynb", "gallery/*.py", "gallery/*.codeobj.json",
                    "**/sg_execution_times.rst", "sg_execution_times.rst", "results/benchopt/*"]  # fmt: skip
suppress_warnings = ["myst.header"]  # tables written by commands begin with a small heading
# no network is needed to read the site: formulas are MathML, made here
html_math_renderer = "mathml"

smartquotes = False  # A' is a transpose
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"  # names and docstrings say what is meant; the types are in the source, one click away
autodoc_preserve_defaults = True
autosummary_generate = False
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "smadmm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("offline.js", {"priority": 600})]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "gallery/index": [], "changelog": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "smadmm"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "site_parts.gallery.Order",
    "doc_module": ("smadmm",),
    "reference_url": {"smadmm": None},
    "parallel": int(os.environ.get("SMADMM_GALLERY_JOBS", "2")),
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1,
    "thumbnail_size": (600, 320),
    "remove_config_comments": True,
    "nested_sections": False,
}


def setup(app):
    for part in (cells, docstrings, gallery, links, mathml):
        part.setup(app)
    reference.write()
    freshness.forget_pictures_of_other_code(DOCS / "gallery", ROOT / "src" / "smadmm")
    freshness.forget_pages_without_a_script(DOCS / "gallery", ROOT / "gallery")
