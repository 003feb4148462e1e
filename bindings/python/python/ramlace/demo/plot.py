"""The plot: GB/s of each case beside the limits, as PNG and SVG."""

from pathlib import Path

from ramlace.demo.cases import Row

# Okabe and Ito's colours, told apart by everyone.
SEQUENTIAL_COLOUR = "#0072b2"
PARALLEL_COLOUR = "#e69f00"
LIMIT_COLOUR = "#555555"


def draw(sums: list[Row], bootstrap: list[Row], memcpy: float, title: str, target: Path) -> list[Path]:
    """Write ``target`` with the suffixes .png and .svg; return both paths.

    Each panel shows one bar for each place and number of workers: the longer, the sooner done. Its length is the rate
    in GB/s, and the label in the column at the right says it again with the seconds.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text in the SVG, so that the plot can be searched and read back.
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure = compose(sums, bootstrap, memcpy, title)
    paths = [target.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return paths


def compose(sums: list[Row], bootstrap: list[Row], memcpy: float, title: str):  # type: ignore[no-untyped-def]
    """Return the figure."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(15, 6), sharex=False, layout="constrained")
    figure.suptitle(title)
    for panel, rows, name in zip(panels, (sums, bootstrap), ("column sums", "bootstrap of the means"), strict=True):
        _panel(panel, rows, memcpy, name)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _panel(panel, rows: list[Row], memcpy: float, name: str) -> None:  # type: ignore[no-untyped-def]
    height = 0.38
    longest = max(memcpy, *(m.gigabytes_per_second for r in rows for m in (r.sequential, r.parallel)))
    for position, row in enumerate(rows):
        bars = ((row.sequential, SEQUENTIAL_COLOUR, -1), (row.parallel, PARALLEL_COLOUR, 1))
        for measured, colour, side in bars:
            shade = 0.45 if row.place.limit else 1.0
            place = position + side * height / 2
            label = "sequential" if side < 0 else f"{measured.workers} workers"
            rate = measured.gigabytes_per_second
            panel.barh(place, rate, height, color=colour, alpha=shade, label=label if position == 0 else None)
            # In a column of their own, behind every bar and the line.
            panel.text(1.03 * longest, place, f"{rate:.2f} GB/s, {measured.seconds:.3f} s", va="center", fontsize=8)
    what = f"memcpy {memcpy:.2f} GB/s: reads every byte and writes it; a view is only read, and may be faster"
    panel.axvline(memcpy, color=LIMIT_COLOUR, linestyle=":", label=what)
    panel.set_yticks(range(len(rows)), [row.place.title for row in rows])
    panel.invert_yaxis()
    panel.set_xlabel("GB of the matrix done in a second")
    panel.set_title(name)
    panel.set_xlim(0, 1.5 * longest)
