"""The gallery: examples in the order of a reader's interest, and a text for every thumbnail."""

import re
from pathlib import Path

SCRIPTS = Path(__file__).parent.parent.parent / "gallery"
ORDER = (SCRIPTS / "order.txt").read_text(encoding="utf-8").split()  # what is not named there comes last, by name
THUMBNAIL = re.compile(r'(\.\. image:: \S*_thumb\.\w+\n\s+:alt:)(\s*\n.*?thumbnail-title">)(.*?)(</div>)', re.DOTALL)


class Order:
    """The sort key that sphinx-gallery asks for."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, file):
        name = file.removeprefix("plot_").removesuffix(".py")
        return (ORDER.index(name) if name in ORDER else len(ORDER), name)

    def __repr__(self):
        return f"Order({ORDER})"


def read(app, docname, source):
    if docname == "gallery/index":
        source[0] = THUMBNAIL.sub(r"\1 \3\2\3\4", source[0])


def setup(app):
    app.connect("source-read", read)
