"""A memory plan for a terminal: a table and a bar for each layout. Pure: a report in, something for rich out."""

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from daemon.core.vram_findings import Gravity
from daemon.core.vram_host import HostItem, HostPlan
from daemon.core.vram_report import LayoutReport, PlanReport, Pool, mib
from daemon.core.vram_values import CardPlan, Certainty, Demand, Item, Layout

_BAR = 64
"""Cells of a full card."""
_LETTERS: Mapping[Item, tuple[str, str]] = {
    Item.WEIGHTS: ("W", "white on blue"),
    Item.ADAPTERS: ("A", "white on blue"),
    Item.KV: ("K", "black on green"),
    Item.RECURRENT: ("R", "black on cyan"),
    Item.DRAFTER: ("D", "white on magenta"),
    Item.VISION: ("V", "white on magenta"),
    Item.PREFILL: ("P", "black on yellow"),
    Item.LOGITS: ("L", "black on yellow"),
    Item.OVERHEAD: ("O", "white on red"),
    Item.OTHERS: ("X", "black on white"),
    Item.MARGIN: ("M", "white on bright_black"),
}
_MEANS: Mapping[Certainty, str] = {
    Certainty.EXACT: "exact: from the files' headers and from formulas that equal what exllamav3's cache allocates",
    Certainty.ESTIMATED: "estimated: from the shapes of what is computed, or from loads under other circumstances",
    Certainty.ASSUMED: "assumed: nothing was loaded on these cards yet",
    Certainty.MEASURED: "measured: seen after loads on these cards, with this driver and layout",
}


def plan_view(plan: PlanReport) -> Group:
    """The report for people."""
    bits = f", {plan.weight_bits:.2f} bits a weight" if plan.weight_bits is not None else ""
    precision = plan.demand.precision
    head = Text(f"{plan.model} ({plan.architecture}): {mib(plan.weight_bytes)} of weights{bits}. ", "bold")
    head.append(f"Cache: {precision.k_bits}-bit keys, {precision.v_bits}-bit values. Chunks of {plan.demand.chunk} tokens.")
    marks = {Gravity.FATAL: Text("wrong: ", "bold red"), Gravity.WARNING: Text("note: ", "yellow")}
    findings = [marks[finding.gravity] + Text(finding.words + ".") for finding in plan.findings]
    layouts = [_layout(layout, plan.demand) for layout in plan.layouts]
    return Group(head, *findings, *layouts, Text(""), *_guarantees(plan), *_meanings(plan), *map(Text, plan.notes))


def _layout(layout: LayoutReport, demand: Demand) -> Group:
    people = "person" if layout.most_people == 1 else "people"
    head = Text(f"\n{layout.layout.value}: ", "bold")
    head.append(f"{layout.most_people} {people} at {demand.context:,} tokens", "bold green" if layout.fits else "bold red")
    if layout.longest_context:
        head.append(f"; {demand.people} at {layout.longest_context:,}")
    parts: list[RenderableType] = [head]
    if layout.problem:
        parts.append(Text(f"{demand.people} do not fit: {layout.problem}."))
    parts.extend(Text(f"  would fit: {change.words}") for change in layout.changes)
    if layout.cards:
        each = [str(plan.people) for plan in layout.cards]
        replicas = layout.layout is Layout.REPLICAS
        parts.append(Text(f"with {' and '.join(each)} people:" if replicas else f"with {each[0]} people:"))
        parts.extend((_table(layout), *(_bar(plan) for plan in layout.cards)))
        if layout.pool is not None and len(set(each)) == 1:
            parts.append(Text(f"config.yaml: {_settings(layout, layout.pool, demand)}"))
    if layout.host.rows:
        parts.append(Text(f"host memory: {_host(layout.host)}"))
    return Group(*parts)


def _host(host: HostPlan) -> str:
    """The machine's account in a line."""
    rows = ", ".join(
        f"{row.item.value} {'up to ' if row.item is HostItem.CHECKPOINTS else ''}{mib(row.size)} ({row.certainty.value})"
        for row in host.rows
    )
    return rows if host.total is None else f"{rows}; the machine has {mib(host.total)}"


def _settings(layout: LayoutReport, pool: Pool, demand: Demand) -> str:
    """What the daemon must be told to be loaded like this. Of replicas each engine gets what is given."""
    engines = len(layout.cards) if layout.layout is Layout.REPLICAS else 1
    named = [] if layout.layout is Layout.SPLIT else [f"engine.layout {layout.layout.value}"]
    tokens, streams = pool.tokens // engines, pool.streams // engines
    named += [f"context {demand.context}", f"engine.cache_tokens {tokens}", f"engine.max_batch {streams}"]
    if not demand.precision.full:
        named += [f"engine.k_bits {demand.precision.k_bits}", f"engine.v_bits {demand.precision.v_bits}"]
    if demand.experts_on_cpu:
        named.append(f"engine.moe_cpu_layers {demand.experts_on_cpu}")
    return ", ".join(named)


def _table(layout: LayoutReport) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for plan in layout.cards:
        table.add_column(plan.card.name, justify="right")
    table.add_column("")
    for item in Item:
        rows = [next((row for row in plan.rows if row.item is item), None) for plan in layout.cards]
        known = next((row for row in rows if row is not None), None)
        if known is not None:
            confirmed = min(plan.card.confirmed for plan in layout.cards)
            told = f" in {confirmed} load{'' if confirmed == 1 else 's'}" if item is Item.OVERHEAD and confirmed else ""
            letter, style = _LETTERS[item]
            sizes = [mib(row.size) if row else "" for row in rows]
            table.add_row(Text(letter, style) + Text(f" {item.value}"), *sizes, known.certainty.value + told)
    table.add_row("  free", *(mib(plan.free) for plan in layout.cards), "")
    held = [f"{plan.layers[0]} to {plan.layers[1]}" if plan.layers else "none" for plan in layout.cards]
    table.add_row("  layers", *held, "")
    return table


def _bar(plan: CardPlan) -> Text:
    """One card as a line of letters: as many as its share of the card."""
    bar, cells, used = Text(), 0, 0
    for row in plan.rows:
        used += row.size
        upto = min(_BAR, round(used / plan.card.size * _BAR))
        letter, style = _LETTERS[row.item]
        bar.append(letter * (upto - cells), style)
        cells = max(cells, upto)
    return bar.append("·" * (_BAR - cells), "dim")


def _guarantees(plan: PlanReport) -> Iterator[Text]:
    """What people are promised, against the pool of each layout."""
    if not plan.guarantees:
        return
    each = ", ".join(f"{one.name} {one.tokens:,}" for one in plan.guarantees)
    promised = sum(one.tokens for one in plan.guarantees)
    yield Text(f"Guaranteed: {each}; {promised:,} tokens together.")
    for layout in plan.layouts:
        if layout.pool is not None:
            yield _promised(layout.layout, layout.pool)


def _promised(layout: Layout, pool: Pool) -> Text:
    if pool.free < 0:
        return Text(
            f"  {layout.value}: {-pool.free:,} tokens more than the pool's {pool.tokens:,}: they cannot all be kept", "red"
        )
    return Text(f"  {layout.value}: of {pool.tokens:,} tokens {pool.free:,} are left for everybody")


def _meanings(plan: PlanReport) -> Iterator[Text]:
    """What the words behind the rows mean; only those that are used."""
    used = {row.certainty for layout in plan.layouts for card in layout.cards for row in card.rows}
    yield from (Text(_MEANS[certainty], "dim") for certainty in Certainty if certainty in used)
