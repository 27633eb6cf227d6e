"""OpenAI Agents SDK: https://openai.github.io/openai-agents-python/human_in_the_loop/ ("pause, approve, resume")"""

import json
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, RunState, SQLiteSession, Usage, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from workload import JOB, REFUSED, SENT, STEPS, Question, System, commit, reach, save_file, watch


class Script(Model):
    """Calls the five tools in order, then says what came of the third."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **named: Any) -> ModelResponse:
        """Decide by the number of results in the conversation."""
        outputs = [item["output"] for item in input if item.get("type") == "function_call_output"]
        if len(outputs) < len(STEPS):
            call = {"name": list(STEPS)[len(outputs)], "call_id": f"call-{len(outputs)}", "type": "function_call"}
            item: Any = ResponseFunctionToolCall(arguments=json.dumps({"order": JOB}), **call)
        else:
            text = SENT if SENT in outputs else REFUSED
            part = ResponseOutputText(text=text, type="output_text", annotations=[])
            item = ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError


TOOLS: list[Any] = [function_tool(step, needs_approval=name == "send_refund") for name, step in STEPS.items()]
AGENT = Agent(name="refunds", model=Script(), tools=TOOLS)


class Adapter(System):
    """The application around the agent."""

    async def open(self) -> None:
        disable_tracing(True)
        self._path = self.folder / "state.json"
        self._session = SQLiteSession(JOB, self.folder / "session.db")
        watch(self._session, "add_items")

    async def advance(self) -> None:
        if not self._path.exists() and await self.result() is None:
            await self._session.clear_session()
            await self._run(f"Refund {JOB}")

    async def question(self) -> Question | None:
        return "approve" if self._path.exists() else None

    async def answer(self, yes: bool) -> None:
        state: Any = await RunState.from_json(AGENT, json.loads(self._path.read_text()))
        for interruption in state.get_interruptions():
            (state.approve if yes else state.reject)(interruption)
        reach("decided")
        await self._run(state)

    async def result(self) -> str | None:
        items: list[Any] = await self._session.get_items()
        return next((item["content"][0]["text"] for item in items if item.get("type") == "message"), None)

    async def _run(self, state: Any) -> None:
        result = await Runner.run(AGENT, state, session=self._session)
        if result.interruptions:
            with commit("before asking", "asked"):
                save_file(self._path, result.to_state().to_string())
        else:
            self._path.unlink(missing_ok=True)
