"""What the demo leaves behind: the table, the plot and all numbers as JSON."""

import json
from pathlib import Path
from typing import Any

from ramlace.demo.cases import Measured, Row


def _measured(figure: Measured) -> dict[str, Any]:
    return {
        "workers": figure.workers,
        "seconds": figure.seconds,
        "runs_seconds": figure.runs,
        "bytes": figure.nbytes,
        "gigabytes_per_second": figure.gigabytes_per_second,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "key": row.place.key,
        "title": row.place.title,
        "servers": row.place.servers,
        "limit": row.place.limit,
        "cache": row.cache,
        "sequential": _measured(row.sequential),
        "parallel": _measured(row.parallel),
    }


def write_json(
    path: Path,
    sums: list[Row],
    bootstrap: list[Row],
    memcpy: float,
    facts: dict[str, Any],
    notes: list[str],
    missing: list[str],
) -> None:
    """Write all numbers: seconds, bytes and 10^9 bytes per second; ``facts`` describe machine and data.

    The sums and the bootstrap's means are there too (NaN as null), so that another program can
    check them. ``missing`` are the places that could not be measured.
    """
    content = {
        **facts,
        "memcpy_gigabytes_per_second": memcpy,
        "column_sums": [_row(row) for row in sums],
        "bootstrap": [_row(row) for row in bootstrap],
        "results": {"column_sums": _plain(sums[0]), "bootstrap_means": _plain(bootstrap[0])},
        "not_measured": missing,
        "notes": notes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _plain(row: Row) -> Any:
    def clean(value: Any) -> Any:
        if isinstance(value, list):
            return [clean(item) for item in value]
        return value if value == value and abs(value) != float("inf") else None

    return clean(row.result.tolist())
