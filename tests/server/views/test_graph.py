"""The graph of a plan: what it shows of every plan, and what no plan can do to it."""

from collections.abc import Sequence
from itertools import combinations
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.agent.core.plan.plan import Plan, ToolFacts
from planwarden.server.views.plan_graph import MAX_ROWS, build_graph, write_mermaid, write_outline
from planwarden.server.views.svg import MAX_LANES, draw_svg, lay_out
from tests.kit import Ledger, parse_plan, plan, requirement, tool_step, warden

TOOLS = {"find": ToolFacts(is_blocking=False), "erase": ToolFacts(is_blocking=False)}


def parse(*steps: dict[str, JsonValue]) -> Plan:
    parsed, _ = parse_plan({"todoList": list(steps)}, author="caller", tools=TOOLS, max_steps=1_000)
    return parsed


def chain(count: int, needs: Sequence[Sequence[int]] = ()) -> Plan:
    """Steps `s0`, `s1`, … of which each depends on those with the given numbers, or on the one before it."""
    steps: list[dict[str, JsonValue]] = []
    for number in range(count):
        places = needs[number] if needs else [number - 1] if number else []
        steps.append(tool_step(f"s{number}", "find", {}, dependencies=[f"s{place}" for place in places]))
    return parse(*steps)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 14))
    numbers = [
        st.lists(st.integers(0, max(0, place - 1)), unique=True, max_size=4 if place else 0) for place in range(count)
    ]
    return chain(count, draw(st.tuples(*numbers)))


@requirement("graph:true")
@given(plans())
def test_every_link_is_drawn_and_no_two_lines_run_over_each_other(drawn: Plan) -> None:
    graph = build_graph(drawn)
    layout = lay_out(graph)
    assert all(link.source < link.target for link in graph.links)
    reached = {(link.source, link.target) for link in layout.straight}
    for lane in layout.lanes:
        one_end = len(lane.sources) == 1 or len(lane.targets) == 1
        assert one_end and lane.sources[0] < lane.targets[-1] and lane.column < layout.columns
        reached |= {(source, target) for source in lane.sources for target in lane.targets}
    if layout.columns < MAX_LANES:
        assert reached == {(link.source, link.target) for link in graph.links}
    for one, other in combinations(layout.lanes, 2):
        if one.column == other.column:
            assert one.targets[-1] <= other.sources[0] or other.targets[-1] <= one.sources[0]


@requirement("graph:true")
def test_what_finds_no_lane_is_named_in_the_row_and_a_very_long_plan_says_how_many_steps_it_leaves_out() -> None:
    needs = [[place - 1, *([place - 15] if place >= 15 else [])] if place else [] for place in range(60)]
    graph = build_graph(chain(60, needs))
    assert lay_out(graph).columns == MAX_LANES
    assert graph.rows[40].after == "after s39, s25" and graph.rows[5].after == ""
    graph = build_graph(chain(MAX_ROWS + 7))
    assert (len(graph.rows), graph.left_out) == (MAX_ROWS, 7)
    for form in (draw_svg(graph), write_mermaid(graph), "\n".join(write_outline(graph))):
        assert "and 7 more steps" in form
    assert graph.summary == f"{MAX_ROWS + 7} steps"


@requirement("graph:hostile")
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300))
def test_no_text_of_a_plan_adds_anything_to_a_graph(text: str) -> None:
    quiet, loud = (build_graph(parse(tool_step("a", "find", {}, description=words))) for words in ("x", text))
    assert _list_tags(draw_svg(loud, stands_alone=True)) <= {*_list_tags(draw_svg(quiet, stands_alone=True)), "tspan"}
    assert write_mermaid(loud).count("\n") == write_mermaid(quiet).count("\n")
    assert len(list(write_outline(loud))) == 2


def _list_tags(svg: str) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}


@requirement("graph:hostile")
def test_a_hostile_name_stands_in_a_drawing_as_text() -> None:
    for name in ("<svg><script>", "a&b;", 'x"onload="y', "名" * 60):
        drawn = draw_svg(build_graph(parse(tool_step(name, "find", {}))), stands_alone=True)
        assert _list_tags(drawn) == {"svg", "desc", "style", "rect", "g", "circle", "text", "tspan"}


@requirement("graph:true")
async def test_the_state_of_each_step_is_said_by_a_sign_and_a_word() -> None:
    steps = (
        tool_step("find", "find", {"topic": "x"}),
        tool_step("ask", "erase", {"ids": [1]}),
        tool_step("last", "note", {"text": "x"}, dependencies=["ask"]),
    )
    async with warden(Ledger()) as w:
        view = await w.execute_plan(plan(*steps), wait_seconds=60)
        execution = await w.service.find(view.execution_id)
        assert execution.plan is not None
        graph = build_graph(execution.plan, execution)
    assert [row.mark for row in graph.rows] == ["done", "asks", "waits"]
    assert graph.summary == "3 steps: 1 done, 1 waits for a person, 1 not begun"
    lines = list(write_outline(graph))
    assert lines[1:3] == ["✓ 1. find: done · find", "? 2. ask: waits for a person · erase"]
    drawn = ElementTree.fromstring(draw_svg(graph))
    assert drawn.attrib["aria-label"] == graph.summary and (drawn[0].text or "").splitlines() == lines
    assert ":::asks" in write_mermaid(graph)
