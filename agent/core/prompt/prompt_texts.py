"""What a model is told, in words: the instructions of each kind of prompt. They contain no text from outside.

`options.prompts` replaces the instructions of planning, steps and synthesis; the data and the form of the answer stay.
"""

PLANNING = """\
Write a plan for the goal. Do not carry it out. Use the fewest steps, in order.

Two kinds of steps:
A tool step gets data from outside, asks a person or changes something: "stepType": "tool" and "requiredTools", the \
tools that must be called. It counts only when they were really called and have answered.
A reasoning step compares, decides or writes from earlier results: "stepType": "reasoning" and no "requiredTools".
Name only tools from the list, where a step truly needs them.

Every step has "id" (a short name), "description" (what to do) and "expectedOutcome" (what is known or true \
afterwards). "dependencies" lists the steps whose results it needs: the step before if you leave it out, [] for none.

A tool step may also have:
"toolCalls", when you know the arguments: [{"toolName": "send_email", "arguments": {"to": "ann@acme.test"}}]. Without \
it you are asked for the calls when the step begins.
{"$from": "find", "pointer": "/rows/0/email"} as an argument: that value of the result of step find (a JSON Pointer). \
Without "pointer" it is the whole result, of a reasoning step its text; "parse": "json" reads text as JSON first.
{"$text": "Dear {name}", "with": {"name": {"$from": "find", "pointer": "/name"}}} as an argument: text with values.
"forEach": {"$from": "find", "pointer": "/rows"}: its toolCalls are made once for each entry of that list, and a \
person is asked ONE question for all of them. {"$from": "item", "pointer": "/email"} is a value of \
the entry, and {"$from": "item", "call": 0, "pointer": "/email"} one of the result of the step's first call for it.
"when": {"value": {"$from": "find", "pointer": "/total"}, "matches": {"minimum": 5000}}: the step runs only if the \
value fits this JSON Schema, else it is skipped. {"minItems": 1}: a list that is not empty.
"onReject": after a person's no, "skip" the steps that depend on it (the default), "stop" or "continue".

Asking a person.
Calls of tools marked dangerous or confirm are asked about by themselves: plan no question before them.
A displayConfirmation step is for asking ONCE before several such calls: "confirms" lists the steps that it \
covers, each with toolCalls whose arguments are known; otherwise they are asked about again.
Where no tool gives what the goal needs, plan a requestInput step that asks the person, or say in a reasoning step \
what is missing. Invent nothing.

Example, for "Refund orders A-1 and A-2 and tell me what you did":
{"todoList": [
{"id": "ask", "description": "Ask once for both refunds", "stepType": "tool", "toolCalls": [{"toolName": \
"displayConfirmation", "arguments": {"action": "Refund orders A-1 and A-2"}}], "confirms": ["refund"], \
"expectedOutcome": "A person has agreed"},
{"id": "refund", "description": "Refund both orders", \
"toolCalls": [{"toolName": "refund_order", "arguments": {"order": "A-1"}}, {"toolName": "refund_order", "arguments": \
{"order": "A-2"}}], "expectedOutcome": "Both orders are refunded"},
{"id": "report", "description": "Say what was refunded", "stepType": "reasoning", "dependencies": ["refund"], \
"expectedOutcome": "A report of two sentences"}]}"""

FOR_CALLERS = "get_tool_schemas shows what the tools that you name take and return."
"""What a caller may do before it writes a plan; a provider's model has no such tool."""

TOOL_STEP = """\
This is a TOOL STEP. It is done only when its REQUIRED TOOLS have been called and have answered. Call them now; \
describing a call is not making it.
Take real values from the results exactly as they are. Write no placeholder (example.com, <id>, []) where data exists. \
If a value is missing, say so, or call the tool that finds it if one is offered.
One answer may have several calls, one for each item; each that needs a person is asked about by itself."""

REASONING_STEP = """\
This is a REASONING STEP. Analyse, compare, decide or write, from the results of earlier steps only. Say what is \
missing. It needs no tools."""

NO_TOOLS = "No tools are offered in this step."

REVISION = """\
If the results show that steps which have not begun are wrong, add "revise" to your answer, a list of \
{"op": "add", "step": {...}, "after": ID}, {"op": "change", "id": ID, "set": {...}}, {"op": "remove", "id": ID} or \
{"op": "move", "id": ID, "after": ID}. Steps that ask a person or confirm others cannot be revised."""

SYNTHESIS = """\
Write the answer to the goal for the person who set it. Use only the record and the results: say what was done, what \
was rejected, skipped or failed, and what could not be reached. Claim nothing else."""
