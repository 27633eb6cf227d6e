// A client on @modelcontextprotocol/client 2.x: `client2.mjs LAUNCHER CALLS ERA`, with the era `legacy` (its default) or `auto`.
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [launcher, calls, mode] = process.argv.slice(2);
const client = new Client(
  { name: "client2", version: "1" },
  { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode } },
);
client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: { decision: "approve" } }));
await client.connect(new StdioClientTransport({ command: launcher, args: [] }));
await client.listTools();
for (const [name, args] of JSON.parse(calls)) await client.callTool({ name, arguments: args });
await client.close();
