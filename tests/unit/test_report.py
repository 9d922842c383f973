"""The report of traces: its figures against traces worked out by hand, its page, pictures and command."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentspec.calibration import figures
from agentspec.calibration.page import page
from agentspec.calibration.report import ReportData, gather
from agentspec.calibration.traces import ReplyTrace, TraceBlock, append_trace, recorded
from agentspec.drafts.grammar import GrammarDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.stream import Stream
from agentspec.errors import ConfigError, TraceError
from agentspec.plots import INK, as_png, as_svg, curves
from agentspec.testing import TrieMatcher
from tests.unit.test_calibration import another, recording_request
from tests.unit.test_cli import run as run_command
from tests.unit.test_engine import model, run, vocab

PNG = b"\x89PNG\r\n\x1a\n"


def block(
    at: int,
    *sources: str,
    accepted: int,
    proposed: int | None = None,
    alpha: Sequence[float] | None = None,
    forced: bool = False,
    decoded: bool = True,
    place: str = "string",
) -> TraceBlock:
    """A block whose sources promise 0.9 of each token, and whose verified tokens are these."""
    size = len(sources)
    return TraceBlock(
        at=at,
        proposed=size if proposed is None else proposed,
        accepted=accepted,
        decoded=decoded,
        tokens=[0] * size,
        sources=list(sources),
        places=[place] * size,
        confidence=[1.0 if forced else 0.9] * size,
        target_probs=list(alpha or [1.0] * size),
        alpha=list(alpha or [1.0] * size),
        forced=[forced] * size,
    )


def reply(tokens: int, *blocks: TraceBlock, **fields: str) -> ReplyTrace:
    known: dict[str, object] = {
        "model": "target",
        "draft": "small",
        "vocab": "v",
        "law": "enforce",
        "sampling": {"temperature": 0.8},
        "tool_set": "tools",
        "agent": "",
        "prompt": [1],
        "finish_reason": "stop",
    }
    return ReplyTrace.model_validate({**known, **fields, "reply": [0] * tokens, "blocks": blocks})


def by_hand() -> list[ReplyTrace]:
    """Ten tokens in four passes, five in two, two of a block that the end cut."""
    return [
        reply(
            10,
            block(0, *["grammar"] * 3, accepted=3, forced=True, place="structure"),  # and one of the target's
            block(4, "model", "model", accepted=1, proposed=4, alpha=[0.8, 0.5]),  # and a replacement
            block(6, accepted=0),
            block(7, "lookup", "model", accepted=2, alpha=[0.9, 0.6]),
        ),
        reply(
            5,
            block(0, "model", accepted=1, alpha=[0.7], place="key"),
            block(2, "model", accepted=0, alpha=[0.25]),
            block(3, *["grammar"] * 2, accepted=2, forced=True, decoded=False),
            tool_set="",
        ),
        reply(2, block(0, *["history"] * 3, accepted=3, alpha=[0.5, 0.5, 0.5]), draft="other"),
    ]


@pytest.fixture(scope="module")
def data() -> ReportData:
    return gather(by_hand())


# ------------------------------------------------------------------------------------------- figures by hand


def test_passes_and_their_bounds(data: ReportData) -> None:
    assert (data.replies, data.tokens, data.proposed) == (3, 17, 16)
    assert data.passes == 7
    assert data.lengths == {4: 1, 2: 3, 1: 2, 3: 1}
    assert data.achieved == pytest.approx(17 / 7)
    #                       reply 1: forced, rejected, empty, whole; reply 2; reply 3
    expected = (4 + (1 + 1.3) + 1 + (1 + 1.5)) + ((1 + 0.7) + (1 + 0.25) + 2) + 1.0
    assert data.expected == pytest.approx(expected / 7)
    assert data.bound == pytest.approx(((4 + 5 + 1 + 3) + (2 + 2 + 2) + 2) / 7)


def test_who_wrote_the_tokens(data: ReportData) -> None:
    assert data.origin.forced == 5
    assert data.origin.sources == {"model": 3, "lookup": 1, "history": 2}
    assert data.origin.target == 6
    assert data.origin.forced + sum(data.origin.sources.values()) + data.origin.target == data.tokens


def test_measures_by_source_and_place_the_busiest_first(data: ReportData) -> None:
    assert [(name, one.count, one.accepted) for name, one in data.sources.items()] == [
        ("model", 5, 3),
        ("history", 3, 3),
        ("lookup", 1, 1),
    ]
    assert {place: one.count for place, one in data.places("model").items()} == {"string": 4, "key": 1}
    assert data.sources["model"].alpha == pytest.approx((0.8 + 0.5 + 0.6 + 0.7 + 0.25) / 5)
    assert data.sources["lookup"].ece == pytest.approx(0.0)


def test_the_json_has_it_all(data: ReportData) -> None:
    found = json.loads(json.dumps(data.as_json()))
    assert found["tokens_per_pass"]["plain"] == 1.0
    assert found["tokens_per_pass"]["bound"] == round(data.bound, 6)
    assert found["accepted_lengths"] == {"1": 2, "2": 3, "3": 1, "4": 1}
    assert found["sources"]["model"]["places"]["key"]["alpha"] == 0.7
    assert found["models"] == [
        {"model": "target", "draft": "small", "replies": 2},
        {"model": "target", "draft": "other", "replies": 1},
    ]
    assert found["samplings"] == [{"sampling": {"temperature": 0.8}, "replies": 3}]
    assert found["tool_sets"] == {"tools": 2, "": 1}


def test_traces_that_show_nothing_are_refused() -> None:
    with pytest.raises(TraceError, match="hold no reply"):
        gather([])
    with pytest.raises(TraceError, match=r"nothing was proposed in any of the 1 replies"):
        gather([reply(1, block(0, accepted=0))])


@pytest.mark.parametrize("tokens", [1, 5])
def test_blocks_that_do_not_make_up_their_reply_are_refused(tokens: int) -> None:
    good = reply(2, block(0, "model", accepted=1))
    with pytest.raises(TraceError, match="reply 2 of the traces"):
        gather([good, reply(tokens, block(0, "model", accepted=1), block(2, "model", accepted=1))])


# ------------------------------------------------------------------------------------------- of the engine


def traced(stream: Stream) -> ReplyTrace:
    assert stream.result.recording is not None
    return ReplyTrace.model_validate(
        {**reply(0).model_dump(exclude={"blocks"}), **recorded(stream.result.recording)}
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_a_trace_says_of_passes_is_what_the_engine_counts(seed: int) -> None:
    core = Core(model(), vocab(), [GrammarDraft(), another()], costs=Costs.free())
    (stream,) = run(core, recording_request(seed))
    found, counted = gather([traced(stream)]), stream.result.trace
    assert (found.tokens, found.passes) == (counted.tokens, counted.target_passes)
    assert found.lengths == counted.accepted_lengths


def test_passes_that_were_not_needed_are_left_out() -> None:
    fixed = [(1, 2, 3, 4, 0, 1, 2, 3), (2, 0, 1, 2, 3, 4, 0, 1)]
    for size in range(1, 9):
        core = Core(model(), vocab(), [GrammarDraft()], costs=Costs.free())
        plain = recording_request(size, matcher=TrieMatcher(fixed))
        options = plain.draft.model_copy(update={"max_block": size})
        (stream,) = run(core, replace(plain, draft=options))
        found, passes = gather([traced(stream)]), stream.result.trace.target_passes
        assert found.passes == passes < found.tokens


def test_expected_is_achieved_without_its_chance() -> None:
    """Of tokens verified one by one; the difference is a sum of independent surprises."""
    found = []
    for seed in range(120):
        plain = recording_request(seed)
        options = plain.draft.model_copy(update={"verifier": "token_wise"})
        core = Core(model(), vocab(), [another()], costs=Costs.free())
        (stream,) = run(core, replace(plain, draft=options))
        found.append(traced(stream))
    data = gather(found)
    seen = [one for trace in found for one in trace.observations()]
    spread = math.sqrt(sum(one.alpha * (1.0 - one.alpha) for one in seen))
    assert len(seen) > 900
    assert abs(data.tokens - data.expected_tokens) < 4 * spread  # a false alarm: 1 in 15,000
    assert data.achieved < data.bound


# ------------------------------------------------------------------------------------------- the page

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in ("href", "xlink:href", "src") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(data: ReportData, *files: str) -> str:
    svgs = {name: as_svg(figures.figure(name, data), name) for name in figures.names(data)}
    return page(data, svgs, files=files, rows_drawn=len(figures.rows(data)), few=figures.FEW)


def test_the_page_is_well_formed_and_needs_nothing_else(data: ReportData) -> None:
    text = rendered(data, "a.jsonl")
    found = Page(text)
    assert found.tags.count("svg") == 4
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert all(link.removeprefix("#") in found.ids for link in found.links)
    assert len(found.ids) == len(set(found.ids))
    assert "@import" not in text
    assert set(part.partition('"')[0] for part in text.split("http")[1:]) == {
        "://www.w3.org/2000/svg",
        "://www.w3.org/1999/xlink",
    }
    assert "currentColor" in text
    assert INK not in "".join(text.partition("<svg")[1:])
    for word in ("2.43", "3.00", "pairs of models", "history", "temperature 0.8"):
        assert word in found.text


def test_what_traces_say_is_text_to_the_page() -> None:
    nasty = "$a$ <b>&'\""
    blocks = block(0, nasty, accepted=1, alpha=[0.5], place=nasty)
    one = reply(2, blocks, model=nasty, draft=nasty, law=nasty, tool_set=nasty, agent=nasty)
    found = Page(rendered(gather([one]), nasty))
    assert "b" not in found.tags
    # files, both models, law, tools, agent, who wrote it, the table and two figures
    assert found.text.count(nasty) >= 11
    assert "\\mathdefault" not in found.text


def test_a_page_of_forced_tokens_alone_has_no_acceptance() -> None:
    forced = gather([reply(3, block(0, "grammar", "grammar", accepted=2, forced=True))])
    found = Page(rendered(forced))
    assert as_png(figures.sheet(forced), dpi=40).startswith(PNG)
    assert found.tags.count("svg") == 2
    assert "no acceptance to speak of" in found.text


def test_many_places_are_drawn_by_how_busy_they_are() -> None:
    def of(source: str, place: int) -> ReplyTrace:
        return reply(2, block(0, source, accepted=1, place=f"p{place}"))

    data = gather([of("model", place % 40) for place in range(60)] + [of("lookup", 0)])
    rows = figures.rows(data)
    assert ("lookup", "") in rows
    assert len(rows) == 24
    assert {("model", f"p{place}") for place in range(20)} < set(rows)
    assert "The 24 busiest rows are drawn" in Page(rendered(data)).text


# ------------------------------------------------------------------------------------------- pictures


def test_pictures_are_pngs(data: ReportData) -> None:
    for name in figures.names(data):
        assert as_png(figures.figure(name, data), dpi=40).startswith(PNG)
    assert as_png(figures.sheet(data), dpi=40).startswith(PNG)


@pytest.mark.parametrize("log_x", [False, True])
def test_curves_have_their_names_and_are_the_same_each_time(log_x: bool) -> None:
    def drawn() -> str:
        series = {"cal $x$": [(1, 0.5), (100, 0.75)], "none <b>": [(1, 0.5), (100, 0.5)]}
        figure = curves(
            series, xlabel="replies", ylabel="alpha", title="T", log_x=log_x, reference=("bound", 0.8)
        )
        return as_svg(figure, "c")

    text = drawn()
    assert text == drawn()
    for word in ("cal $x$", "none &lt;b&gt;", "replies", "alpha", ">T<", "bound", ">100<"):
        assert word in text
    assert "mathdefault" not in text
    assert 'id="c-axes_1"' in text


def test_without_matplotlib_it_is_named(monkeypatch: pytest.MonkeyPatch, data: ReportData) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"langchain-agentspec\[plots\]"):
        figures.sheet(data)
    with pytest.raises(ConfigError, match=r"langchain-agentspec\[plots\]"):
        curves({}, xlabel="", ylabel="")


# ------------------------------------------------------------------------------------------- the command


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    for one in by_hand():
        append_trace(path, one)
    return path


def test_the_command_writes_what_it_is_asked_for(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(monkeypatch, "report", traces.name, "--png", "all.png", "--json", "r.json") == 0
    printed = capsys.readouterr()
    assert "17 tokens in 7 target passes" in printed.out
    assert "model" in printed.out
    assert printed.err == "reading: 3 replies\n"
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert (tmp_path / "all.png").read_bytes().startswith(PNG)
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["target_passes"] == 7


def test_json_goes_to_stdout_alone_and_pictures_into_a_folder(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("-o", str(tmp_path / "o.html"), "--png", str(tmp_path / "deep" / "folder"), "--json", "-")
    assert run_command(monkeypatch, "report", str(traces), str(traces), *arguments) == 0
    assert json.loads(capsys.readouterr().out)["replies"] == 6
    drawn = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    assert drawn == {"passes.png", "lengths.png", "reliability.png", "acceptance.png"}
    assert "traces.jsonl" in (tmp_path / "o.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.jsonl"], 1, "nowhere.jsonl cannot be read"),
        (["empty.jsonl"], 1, "hold no reply"),
        (["broken.jsonl"], 1, "broken.jsonl:2 is no line"),
        (["plain.jsonl"], 1, "nothing was proposed"),
        (["traces.jsonl", "-o", "no/such/r.html"], 1, "--output no/such/r.html cannot be written"),
        (["traces.jsonl", "-o", "."], 1, "it is a folder"),
        (["traces.jsonl", "-o", "-"], 2, "goes into a file"),
        (["traces.jsonl", "--png", "empty.jsonl"], 1, "--png empty.jsonl cannot be made"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors_are_one_message_and_leave_no_page(
    arguments: list[str],
    code: int,
    message: str,
    traces: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    Path("broken.jsonl").write_text(traces.read_text().splitlines()[0] + "\n{}\n")
    append_trace(Path("plain.jsonl"), reply(1, block(0, accepted=0)))
    assert run_command(monkeypatch, "report", *arguments) == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("report.html").exists()
