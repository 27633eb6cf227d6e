// planwarden guard: this file is written by `planwarden guard install opencode`, and removed by `guard uninstall`.
// It asks planwarden before opencode runs a tool. Whatever is not a clear answer throws, so that the tool does not run.
import { spawn } from "node:child_process"

const COMMAND = ["COMMAND"]
// Permissions that `guard install` switched on, and `guard uninstall` takes away again.
const ADDED = ["ADDED"]
const LIMIT_MS = 30_000
const MAX_CHARS = 100_000

function run(event) {
  return new Promise((resolve, reject) => {
    const child = spawn(COMMAND[0], COMMAND.slice(1), { stdio: ["pipe", "pipe", "pipe"] })
    let out = ""
    let said = ""
    const timer = setTimeout(() => {
      child.kill("SIGKILL")
      reject(new Error("planwarden: no answer in time, so this call is blocked"))
    }, LIMIT_MS)
    child.stdout.on("data", (data) => {
      if (out.length < MAX_CHARS) out += data
    })
    child.stderr.on("data", (data) => {
      if (said.length < MAX_CHARS) said += data
    })
    child.stdin.on("error", () => {})
    child.on("error", (error) => {
      clearTimeout(timer)
      reject(new Error(`planwarden: it cannot be started, so this call is blocked: ${error.message}`))
    })
    child.on("close", (code) => {
      clearTimeout(timer)
      resolve({ code, out: out.trim(), said: said.trim() })
    })
    child.stdin.end(JSON.stringify(event))
  })
}

async function ask(event) {
  const { code, out, said } = await run(event)
  if (code === 0 && out === '{"planwarden": "allow"}') return "allow"
  if (code === 0 && out === '{"planwarden": "no opinion"}') return "no opinion"
  throw new Error(said || "planwarden: this call is blocked")
}

// What was done, and that a turn ended. Where planwarden fails, nothing is blocked.
async function tell(event) {
  try {
    return JSON.parse((await run(event)).out || "{}")
  } catch {
    return {}
  }
}

export const PlanwardenGuard = async ({ client, directory }) => {
  const allowed = new Set()
  // Sessions of subagents, and those that started them.
  const parents = new Map()
  // Sessions whose last stop was refused.
  const refused = new Set()
  const root = (id) => (parents.has(id) ? root(parents.get(id)) : id)
  return {
    "tool.execute.before": async (input, output) => {
      const answer = await ask({
        tool_name: input.tool,
        tool_input: output.args ?? {},
        cwd: directory,
        session_id: input.sessionID,
      })
      if (allowed.size > 1000) allowed.clear()
      if (answer === "allow") allowed.add(input.callID)
    },
    "tool.execute.after": async (input, output) => {
      const failed = input.tool === "bash" && output?.metadata?.exit !== 0
      await tell({
        hook_event_name: failed ? "PostToolUseFailure" : "PostToolUse",
        tool_name: input.tool,
        tool_input: input.args ?? {},
        tool_response: {},
        cwd: directory,
        session_id: root(input.sessionID),
        agent_id: parents.has(input.sessionID) ? input.sessionID : "",
      })
    },
    // opencode asks too where its settings say so. What a rule or a person allowed is not asked about twice.
    event: async ({ event }) => {
      const about = event?.properties
      if (event?.type === "session.created" && about?.info?.parentID) parents.set(about.info.id, about.info.parentID)
      if (event?.type === "session.idle" && !parents.has(about?.sessionID)) {
        const id = about.sessionID
        const answer = await tell({
          hook_event_name: "Stop",
          stop_hook_active: refused.has(id),
          cwd: directory,
          session_id: id,
        })
        const text = answer.decision === "block" ? answer.reason : ""
        refused.delete(id)
        if (!text) return
        refused.add(id)
        // The turn has ended; the reason begins another one, unless opencode ends before (`opencode run`).
        await client.session.promptAsync({ path: { id }, body: { parts: [{ type: "text", text }] } })
        return
      }
      if (event?.type !== "permission.asked") return
      const { id, sessionID, tool } = event.properties ?? {}
      if (!tool?.callID || !allowed.delete(tool.callID)) return
      try {
        await client.postSessionIdPermissionsPermissionId({
          path: { id: sessionID, permissionID: id },
          body: { response: "once" },
        })
      } catch {
        // Then a person answers in opencode.
      }
    },
  }
}
