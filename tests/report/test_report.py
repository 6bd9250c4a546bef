"""The terminal's tables and the HTML file."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import evidence as ev
import pytest

from ztune.advice.recommend import recommend
from ztune.output import Console
from ztune.report import charts, html, terminal
from ztune.report.brief import BriefFigure
from ztune.study.layout import parse_layout, with_settings
from ztune.trace.left_out import LeftOut

TRIALS = ev.trials(fail=("data.recordsize=64K",))
FULL = recommend(ev.run(), TRIALS, manifest=ev.manifest())
PAGE = html.render(ev.run(), TRIALS, FULL, ev.summary())


def printed(width: int = 80, top: int | None = terminal.TOP) -> str:
    out = io.StringIO()
    terminal.show(FULL, Console(width=width, highlight=False, file=out), top)
    return out.getvalue()


def test_terminal_fits_80_columns_and_names_all_parts() -> None:
    text = printed()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for words in (
        "recommended",
        "(base)",
        "Set apart",
        "Failed",
        "the pool ran out of space",
        "Know before",
        "How sure",
    ):
        assert words in text
    assert FULL.layout_name in text


def test_the_table_shows_the_base_even_beyond_the_top_and_says_that_more_exist() -> None:
    text = printed(top=2)
    assert "(base)" in text
    assert f"{len(FULL.ranking)} layouts in all; --all shows the rest" in text
    assert "--all" not in printed(top=None)


def test_the_first_line_names_what_is_recommended_where_that_is_not_the_first_in_the_ranking() -> None:
    chosen = next(row for row in FULL.ranking if row.recommended)
    rest = [row for row in FULL.ranking if row is not chosen]
    why = "a short replay flatters its logbias=throughput"
    rest[0] = rest[0].model_copy(update={"passed_over": why})
    for ranking, said in (([chosen, *rest], False), ([*rest, chosen], True)):
        out = io.StringIO()
        r = FULL.model_copy(update={"ranking": ranking})
        Console(width=200, highlight=False, file=out).print(terminal.ranking(r, top=1))
        first = out.getvalue().splitlines()[0]
        expected = f"Recommended: {chosen.layout}, row {chosen.rank}. Row 1 comes first, but {why}."
        assert (first == expected) is said


def test_markup_in_names_is_printed_as_it_is() -> None:
    layout = parse_layout({**ev.base_layout(), "name": "[bold red]x[/] :smile:"})
    r = recommend(ev.run(), [ev.trial(layout, 1, ev.toy_measure(layout), baseline=True)])
    out = io.StringIO()
    terminal.show(r, Console(width=100, file=out))
    assert "[bold red]x[/] :smile:" in out.getvalue()


class Checker(HTMLParser):
    """Notes what an HTML file would load, its ids and links, and tags that are not closed in order."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.heads: list[dict[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.loads += [f"{tag} {k}={v}" for k, v in attrs if k in {"src", "srcset", "action", "data"}]
        if tag == "link":
            self.loads.append(f"link {found}")
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "th":
            self.heads.append(found)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


def test_html_is_well_formed_and_loads_nothing() -> None:
    got = checked(PAGE)
    assert got.faults == []
    assert got.open == []
    assert got.loads == []
    assert "@import" not in PAGE
    assert "url(" not in PAGE
    assert not re.search(r"https?://", PAGE)
    assert "default-src 'none'" in PAGE
    assert "fetch(" not in PAGE


def test_links_lead_somewhere_and_ids_are_unique() -> None:
    got = checked(PAGE)
    assert len(got.ids) == len(set(got.ids))
    assert all(link.startswith("#") and link[1:] in got.ids for link in got.links)


def test_tables_have_headers_with_a_scope() -> None:
    got = checked(PAGE)
    assert got.heads
    assert all(head.get("scope") in {"col", "row"} for head in got.heads)


def test_html_says_what_matters() -> None:
    for words in (
        "modelled from device profiles, none is measured",
        f"{len(FULL.to_buy)} of them with hardware to buy, each tried by",
        FULL.layout_name,
        "Back at 128K: modelled time ×",
        "Set apart: weaker durability",
        "the pool ran out of space",
        "zfs create \\\n    -o recordsize=8K \\",
        "tank/data",
        "ztune screen /srv/traces/oltp.trace",
        "Not tested",
    ):
        assert words in PAGE
    assert PAGE.count('data-copy="') == 2
    assert PAGE.count("<circle") > len(FULL.ranking)


def test_histograms_hold_the_counts_of_the_trace() -> None:
    for number in ("61,234", "39,800", "17,500"):
        assert number in PAGE
    assert "<b>93%</b> sequential" in PAGE
    assert "<b>6%</b> of writes synced" in PAGE  # 2,400 of 39,906


def test_files_are_drawn_by_number_and_by_bytes() -> None:
    assert "8K to 16K: 30 of 42 files, 240 KiB in them" in PAGE
    assert "256M to 512M: 2 of 42 files, 1.00 GiB in them" in PAGE
    plot = charts.file_sizes({0: 1, 4096: 3, 16384: 1}, {0: 0, 4096: 3 * 4096, 16384: 30_000})
    columns = re.findall(r'class="sizes (\w+)".*?height="([\d.]+)"><title>(\w+)', plot)
    high = {(kind, size): float(height) for kind, height, size in columns}
    assert set(high) == {
        ("files", "empty"),
        ("files", "4K"),
        ("bytes", "4K"),
        ("files", "16K"),
        ("bytes", "16K"),
    }
    assert high["files", "4K"] / high["files", "16K"] == pytest.approx(3, rel=0.01)
    assert high["bytes", "16K"] / high["bytes", "4K"] == pytest.approx(30_000 / (3 * 4096), rel=0.01)
    assert re.findall(r'text-anchor="middle">([^<]+)<', plot) == ["0", "4K", "8K", "16K"]
    assert "bytes" not in charts.file_sizes({4096: 3}), "an observation knows no bytes by size"
    assert charts.file_sizes({}) == charts.file_sizes({4096: 0}) == charts.file_sizes({-2: 1, 8192: -1}) == ""


def test_without_the_trace_the_page_says_why() -> None:
    page = html.render(ev.run(), TRIALS, recommend(ev.run(), TRIALS), None, "The trace is gone.")
    assert "No histograms. The trace is gone." in page
    assert checked(page).faults == []


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def test_text_from_outside_is_escaped_everywhere() -> None:
    layouts = [
        parse_layout({**ev.base_layout(), "name": EVIL}),
        with_settings(parse_layout(ev.base_layout()), {"data.recordsize": "8K"}, EVIL + "2"),
        with_settings(parse_layout(ev.base_layout()), {"wal.recordsize": "8K"}, EVIL + "3"),
    ]
    trials = [
        ev.trial(layouts[0], 1, ev.toy_measure(layouts[0]), baseline=True, warnings=[EVIL]),
        ev.trial(layouts[1], 2, ev.toy_measure(layouts[1])),
        ev.trial(layouts[2], 3, status="failed", error=EVIL),
    ]
    run = ev.run(
        name=EVIL,
        trace_path=f"/x/{EVIL}",
        command=["ztune", EVIL],
        warnings=[EVIL],
        environment={EVIL: EVIL, "deep": {EVIL: [EVIL]}},
        versions={EVIL: EVIL},
    )
    run.study["name"] = EVIL
    run.study["workload"] = EVIL
    manifest = ev.manifest(
        workload=None,
        warnings=[{"code": "x", "message": EVIL}],
        files=[{"id": 0, "path": f"/x/{EVIL}", "role": "data"}],
    )
    page = html.render(run, trials, recommend(run, trials, manifest=manifest), ev.summary(manifest), EVIL)
    got = checked(page)
    assert got.tags.count("script") == 1
    assert "img" not in got.tags
    assert got.faults == []
    assert "<script>alert" not in page


def rows(*triples: tuple[float, float, float]) -> list[Any]:
    base = FULL.ranking[0]
    return [
        base.model_copy(
            update={
                "rank": i,
                "values": {"modelled_s": t, "allocated": s, "written": w},
                "recommended": i == 1,
                "baseline": i == 2,
            }
        )
        for i, (t, s, w) in enumerate(triples, start=1)
    ]


@pytest.mark.parametrize(
    "points",
    [
        [(1, 1, 1), (1, 1, 1)],  # all the same
        [(0.001, 1e12, 0), (1000, 1, 1e9)],  # far apart
        [(0, 0, 0), (5, 5, 5)],  # nothing
    ],
)
def test_the_plot_stands_any_numbers(points: list[tuple[float, float, float]]) -> None:
    plot = str(charts.trade_off(rows(*points), []))
    assert plot.count("<circle") == 2
    assert "nan" not in plot
    assert "inf" not in plot
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', plot):
        assert 0 <= float(x) <= 1040
        assert 0 <= float(y) <= 460


def test_one_layout_makes_no_plot() -> None:
    assert str(charts.trade_off(rows((1, 1, 1)), [])) == ""


def test_axis_ticks_are_round_and_inside() -> None:
    linear = charts.Axis.over([90.0, 200.0], 0, 100)
    assert linear.ticks() == [100.0, 150.0, 200.0]
    assert not linear.log
    log = charts.Axis.over([1.0, 900.0], 0, 100)
    assert log.log
    assert all(log.low <= t <= log.high for t in log.ticks())
    sizes = charts.Axis.over([386.0 * 2**20, 1024.0 * 2**20], 0, 100).ticks(binary=True)
    assert [t / 2**20 for t in sizes] == [512.0, 768.0, 1024.0]


def test_bars_grow_to_the_side_of_the_change() -> None:
    def bar(ratio: float) -> tuple[str, float]:
        found = re.search(r'class="(less|more)" x="([\d.]+)"', str(charts.ratio_bar(ratio, ratio, ratio, 4)))
        assert found is not None
        return found[1], float(found[2])

    assert bar(0.5)[0] == "less"
    assert bar(0.5)[1] < 60
    assert bar(2.0) == ("more", 60.0)
    assert bar(0.0)[0] == "less"  # from something to nothing is cut at the scale's end


def test_no_figure_of_the_picture_ends_beyond_its_edge() -> None:
    figure = BriefFigure("space", "8.64 MiB", "8.43 MiB", "as base (×0.98)", bars=(1.0, 0.976))
    for figures in ([figure], [figure, replace(figure, bars=(1.0, 0.01))]):
        picture = str(charts.now_and_then(figures, 360, stacked=True))
        found = re.findall(r'<text x="([\d.]+)" y="\d+">([^<]*)<tspan class="">([^<]*)', picture)
        assert len(found) == 2 * len(figures)
        # At 12 px DejaVu Sans, which is wide, has 6.5 px for a letter on average, and its bold one 8.
        assert all(float(x) + 6.5 * len(value) + 8 * len(change) <= 360 for x, value, change in found)


def test_what_changes_has_a_picture_that_fits_a_phone() -> None:
    """No figure of the first screen lies beyond the edge, where it has to be scrolled to."""
    figures = re.findall(r'<div class="(broad|narrow)">(<svg viewBox="0 0 (\d+) .*?</svg>)', PAGE, re.DOTALL)
    assert [(kind, int(wide)) for kind, _, wide in figures] == [("broad", 1040), ("narrow", 360)]
    said = [re.findall(r"<text[^>]*>([^<]*)", picture) for _, picture, _ in figures]
    assert said[0] == said[1] and len(said[0]) % 3 == 0 and "space" in said[0]
    names = re.findall(r'<text class="strong" x="0" y="(\d+)"', figures[1][1])
    bars = re.findall(r'<rect class="bar base" x="0" y="(\d+)"', figures[1][1])
    assert all(int(name) < int(bar) for name, bar in zip(names, bars, strict=True))


@pytest.mark.parametrize(("share", "most"), [(0.12, False), (0.9, True)])
def test_what_is_left_out_of_the_recording_is_said_in_the_report_s_opening(share: float, most: bool) -> None:
    r = recommend(ev.run(), ev.trials(), manifest=ev.manifest(), left_out=LeftOut(share, 0.0, ("/db/*.ldb",)))
    page = html.render(ev.run(), ev.trials(), r, None)
    checked(page)
    opening = page.partition('id="verdict"')[2].partition("All of the layout")[0]
    assert f"{share:.0%} of the recorded bytes".replace("%", " %") in opening
    assert ("<dt>Set</dt>" in opening) is not most and ("No answer" in opening) is most
    assert ('id="commands"' in page) is not most
