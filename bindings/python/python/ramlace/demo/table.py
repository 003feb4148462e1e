"""The table: where the bytes live, sequentially and by several workers."""

from ramlace.demo.cases import Row

HEADINGS = ("where the bytes live", "servers")


def render(
    sums: list[Row], bootstrap: list[Row], replicates: int, memcpy: float, notes: list[str], missing: list[str]
) -> str:
    """Return the whole table as text that also reads as Markdown; ``memcpy`` in GB/s of copied bytes.

    ``missing`` are titles of places that could not be measured: each has a line in both parts.
    """
    workers = sums[0].parallel.workers
    columns = (*HEADINGS, "sequential s", "GB/s", f"{workers} workers s", "GB/s", "times faster")
    lines: list[tuple[str, ...]] = [columns]
    lines.append(("**column sums**",) + ("",) * (len(columns) - 1))
    lines += [_cells(row) for row in sums if not row.place.limit]
    lines += [_empty(title, len(columns)) for title in missing]
    lines.append((f"**bootstrap of the means, {replicates} replicates**",) + ("",) * (len(columns) - 1))
    lines += [_cells(row) for row in bootstrap if not row.place.limit]
    lines += [_empty(title, len(columns)) for title in missing]
    lines.append(("**limits of this machine**",) + ("",) * (len(columns) - 1))
    lines.append(("memcpy, bytes copied", "", "", f"{memcpy:.2f}", "", "", ""))
    for name, rows in (("sums", sums), ("bootstrap", bootstrap)):
        lines += [_cells(row, f"{row.place.title}, {name}") for row in rows if row.place.limit]
    return "\n".join([*_aligned(lines), "", *(f"- {note}" for note in notes)])


def _empty(title: str, columns: int) -> tuple[str, ...]:
    return (f"{title}: not measured, see below",) + ("",) * (columns - 1)


def _cells(row: Row, title: str | None = None) -> tuple[str, ...]:
    one, many = row.sequential, row.parallel
    return (
        title or row.place.title,
        str(row.place.servers) if row.place.servers else "",
        f"{one.seconds:.3f}",
        f"{one.gigabytes_per_second:.2f}",
        f"{many.seconds:.3f}",
        f"{many.gigabytes_per_second:.2f}",
        f"{one.seconds / many.seconds:.2f}",
    )


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[index]) for line in lines) for index in range(len(lines[0]))]

    def join(cells: tuple[str, ...]) -> str:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join((first, *rest)) + " |"

    rule = "|" + "|".join(["-" * (widths[0] + 2)] + ["-" * (width + 1) + ":" for width in widths[1:]]) + "|"
    return [join(lines[0]), rule, *(join(line) for line in lines[1:])]
