// A client on @modelcontextprotocol/sdk 1.x: `sdk1.mjs LAUNCHER CALLS` lists the tools, then makes the calls in order.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [launcher, calls] = process.argv.slice(2);
const client = new Client({ name: "sdk1", version: "1" }, { capabilities: { elicitation: { form: {} } } });
client.setRequestHandler(ElicitRequestSchema, () => ({ action: "accept", content: { decision: "approve" } }));
await client.connect(new StdioClientTransport({ command: launcher, args: [] }));
await client.listTools();
for (const [name, args] of JSON.parse(calls)) await client.callTool({ name, arguments: args });
await client.close();
