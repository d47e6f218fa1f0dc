"""Tables and chapters in Markdown, and figures as PNG files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smadmm.io.files import cleaned
from smadmm.report import Column, Curves, Heading, Measured, Part, Table, Verdict


def markdown_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """A table of the rows; `columns` maps names to formats such as '.3f'."""

    def cell(value: Any, form: str) -> str:
        return "-" if cleaned(value) is None else format(value, form)

    return _lines(columns, ([cell(row.get(name), form) for name, form in columns.items()] for row in rows))


def _lines(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    heads = list(heads)
    lines = [heads, *rows]
    first, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([first, "|" + "---|" * len(heads), *rest])


def markdown(parts: Sequence[Part]) -> str:
    """Headings, paragraphs, tables and verdicts of a chapter."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Verdict):
            texts.append(f"**{part.claim}**: {part.outcome}. {part.because}.")
        elif isinstance(part, Heading):
            texts.append("#" * part.level + f" {part.text}")
        elif isinstance(part, Table):
            texts.append(_table(part))
    return "\n\n".join(texts) + "\n"


def _table(table: Table) -> str:
    columns = [c if isinstance(c, Column) else Column(c) for c in table.columns]

    def text(cell: Any, form: str) -> str:
        if isinstance(cell, Measured):
            return text(cell.ours, form) + ("" if cell.paper is None else f" ({cell.paper:{form}})")
        return "-" if cell is None else f"{cell:{form}}" if isinstance(cell, float) and form else str(cell)

    has_paper = any(isinstance(cell, Measured) and cell.paper is not None for row in table.rows for cell in row)
    title = f"{table.title} (the paper's in brackets)" if has_paper else table.title
    cells = ([text(cell, c.form) for cell, c in zip(row, columns, strict=True)] for row in table.rows)
    return "\n\n".join([title, _lines((c.name for c in columns), cells), *([table.note] if table.note else [])])


def draw(plots: Sequence[Curves], columns: int | None = None, depth: float | None = None, dpi: int = 110) -> bytes:
    """Plots side by side, a curve of one name in one colour; with `depth` no more than that below the highest value."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(series.name for plot in plots for series in plot.series))
    wide = columns or len(plots)
    high = -(-len(plots) // wide)
    figure = Figure(figsize=(4.2 * wide, 3.6 * high), layout="constrained", facecolor="white")
    handles: dict[str, Any] = {}
    for axes, plot in zip(figure.subplots(high, wide, squeeze=False).flat, plots, strict=True):
        for series in plot.series:
            number = names.index(series.name)
            color = f"C{number}" if len(names) <= 10 else colormaps["tab20"](number % 20)
            look: dict[str, Any] = {"color": color, "linestyle": "--" if series.dashed else "-"}
            (handles[series.name],) = axes.plot(series.x, series.y, linewidth=1, **look)
            if series.low is not None:
                axes.fill_between(series.x, series.low, series.high, alpha=0.15, color=look["color"], linewidth=0)
        if depth is not None:
            top = max((max(series.y) for series in plot.series if series.y), default=depth)
            axes.set_ylim(top - depth, top + depth / 16)
        _label(axes, plot)
    across = 2 * wide if len(names) <= 10 else wide + 1
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=across, fontsize=7)
    return png_of(figure, dpi)


def _label(axes: Any, plot: Curves) -> None:
    """Title, names and marks of the axes; those of a logarithm are written as plain numbers."""
    from matplotlib.ticker import LogLocator

    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.set(xscale="log" if plot.log_x else "linear", yscale="log" if plot.log_y else "linear")
    for axis, is_log, marks in ((axes.xaxis, plot.log_x, (1, 3)), (axes.yaxis, plot.log_y, (1, 2, 3, 5))):
        if is_log:
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=marks if high < 1e4 * low else (1,), numticks=12))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    axes.grid(alpha=0.3)


def png_of(figure: Any, dpi: int) -> bytes:
    """A figure of Matplotlib as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi, format="png")
    return buffer.getvalue()
