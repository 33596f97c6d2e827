"""What a notebook shows of a result: the campaign in words, what needs attention, and the best as a table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hpo.results import curves
from hpo.views.figures.source import Source
from hpo.views.report.summary import Comparison, Summary, summary

if TYPE_CHECKING:
    from hpo.results.record import CampaignRecord


def shown(record: CampaignRecord) -> str:
    """HTML in which everything from the campaign is escaped; it has no script."""
    directory = record.directory
    found = summary(Source(name=directory.absolute().name, record=record, curves=curves.Curves().frame()))
    parts = [f"<p><b>{escape(found.name)}</b> – {escape(found.lead)}</p>", _attention(found)]
    if found.comparison is not None:
        parts.append(_table(found.comparison))
    return "".join(parts)


def _attention(found: Summary) -> str:
    lines = [f"<li>{escape(one.text)}</li>" for one in found.health if one.level in ("warn", "bad")]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def _table(found: Comparison) -> str:
    rows = [["", *found.heads], ["id", *found.ids]]
    rows += [[one.name, *one.values] for one in (*found.results, *found.parameters)]
    lines = []
    for number, (name, *values) in enumerate(rows):
        tag = "td" if number else "th"
        cells = "".join(f"<{tag} style='text-align:left'>{escape(value)}</{tag}>" for value in values)
        lines.append(f"<tr><th style='text-align:left'>{escape(name)}</th>{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"
