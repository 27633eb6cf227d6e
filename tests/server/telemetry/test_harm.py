"""A provider's code that fails or hangs harms no execution, no request and not the end of a program."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest
from opentelemetry.metrics import MeterProvider, NoOpCounter, NoOpHistogram, NoOpMeter
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, NoOpTracer, NoOpTracerProvider, TracerProvider
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import ThreadBusy
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.server.telemetry.spans import MAX_OPEN
from planwarden.server.telemetry.telemetry import Telemetry
from tests.kit import MemoryStore, Settings, requirement
from tests.server.telemetry.support import Watching, attributes
from tests.support.wardens import Ledger, PausingTool, calls, end_at_once, model_step, plan, says, statuses, tool_step

pytestmark = pytest.mark.anyio

HOOKS = (*("start_span", "get_span_context", "is_recording", "set_attribute", "set_status", "end", "add", "record"),)


class Broken:
    """Providers of which everything named `hook` raises."""

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.times = 0

    def check(self, name: str) -> None:
        if name == self.hook:
            self.times += 1
            self.fail()

    def fail(self) -> NoReturn:
        raise RuntimeError(f"{self.hook} is broken")


def breaking(base: type[Any], broken: Broken, **made: Callable[..., object]) -> Any:
    """Returns a class like `base`, which does nothing, with hooks that may fail and methods that make what is given."""

    def method(name: str) -> Callable[..., object]:
        def call(self: object, *about: Any, **more: Any) -> object:
            broken.check(name)
            return made[name](*about[:1]) if name in made else getattr(base, name)(self, *about, **more)

        return call

    names = [name for name in {*HOOKS, *made} if hasattr(base, name)]
    return type(f"Broken{base.__name__}", (base,), {name: method(name) for name in names})


def break_providers(broken: Broken) -> tuple[TracerProvider, MeterProvider]:
    span, counter, histogram = (breaking(base, broken) for base in (NonRecordingSpan, NoOpCounter, NoOpHistogram))
    tracer = breaking(NoOpTracer, broken, start_span=lambda *_: span(INVALID_SPAN_CONTEXT))
    meter = breaking(NoOpMeter, broken, create_counter=counter, create_histogram=histogram)
    traces = breaking(NoOpTracerProvider, broken, get_tracer=lambda *_: tracer())
    return traces(), breaking(MeterProvider, broken, get_meter=meter)()


@requirement("telemetry:harmless")
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_failing_observer_changes_no_execution(hook: str) -> None:
    broken, ledger = Broken(hook), Ledger()
    traces, meters = break_providers(broken)
    steps = plan(
        tool_step("a", "note", {"text": "x"}),
        tool_step("b", "broken", dependencies=[]),
        model_step("c", "note", dependencies=["a"]),
        tool_step("d", "erase", {"ids": [1]}, dependencies=["c"]),
    )
    script: list[JsonValue] = [calls(("note", {"text": "y"})), says("noted")]
    with anyio.fail_after(60):
        async with planwarden.Warden(
            settings=Settings(home=Path("/nonexistent")),
            model=ScriptedModel({"replies": script}),
            tools=ledger.tools(),
            store=MemoryStore(),
            tracer_provider=traces,
            meter_provider=meters,
        ) as w:
            asked = await w.execute_plan(steps, wait_seconds=60)
            assert (asked.status, statuses(asked)["b"]) == ("suspended", "failed")
            [question] = asked.suspensions
            yes = planwarden.Decision(approved=True)
            done = await w.resume_execution(asked.thread_id, question.suspension_id, yes, wait_seconds=60)
            assert statuses(done)["d"] == "completed"
    assert ledger.lines == ["note x", "note y", "erase [1]"]
    assert broken.times or hook in ("is_recording", "record")


@requirement("telemetry:harmless")
@pytest.mark.parametrize("hook", HOOKS)
async def test_an_observer_that_fails_at_the_end_keeps_no_program_from_ending(hook: str) -> None:
    broken, gate = Broken(hook), PausingTool()
    traces, meters = break_providers(broken)
    made = planwarden.Warden(
        settings=Settings(home=Path("/nonexistent")),
        tools=[gate.tool()],
        store=MemoryStore(),
        tracer_provider=traces,
        meter_provider=meters,
    )
    with anyio.fail_after(60):
        async with made:
            end_at_once(made)
            await made.execute_plan(plan(tool_step("a", "gate")), wait_seconds=0)
            await gate.started.wait()


@requirement("telemetry:harmless")
async def test_a_failing_shutdown_raises_nothing() -> None:
    broken = Broken("shutdown")
    observer = Telemetry(None, None, shutdown=lambda: broken.check("shutdown"))
    with anyio.fail_after(60):
        await observer.aclose()
    assert broken.times == 1


@requirement("telemetry:hostile")
async def test_refused_executions_take_no_span_from_running_ones() -> None:
    seen, gate = Watching(), PausingTool()
    async with seen.warden(tools=[gate.tool()]) as w:
        running = await w.execute_plan(plan(tool_step("a", "gate")), wait_seconds=0)
        await gate.started.wait()
        for _ in range(MAX_OPEN + 1):
            with pytest.raises(ThreadBusy):
                await w.execute_plan(plan(tool_step("a", "gate")), thread_id=running.thread_id)
        gate.opened.set()
        with anyio.fail_after(60):
            await w.service.engine.wait(await w.service.engine.find(running.execution_id), 60)
    workflows = [span for span in seen.spans if span.name == "invoke_workflow planwarden"]
    assert [attributes(span).get("planwarden.interrupted") for span in workflows] == [None]
