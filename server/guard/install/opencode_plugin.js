// planwarden guard: this file is written by `planwarden guard install opencode`, and removed by `guard uninstall`.
// It asks planwarden before opencode runs a tool. Whatever is not a clear answer throws, so that the tool does not run.
import { spawn } from "node:child_process"

const COMMAND = ["COMMAND"]
// Permissions that `guard install` switched on, and `guard uninstall` takes away again.
const ADDED = ["ADDED"]
const LIMIT_MS = 30_000
const MAX_CHARS = 100_000

function ask(event) {
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
      if (code === 0 && out.trim() === '{"planwarden": "allow"}') resolve("allow")
      else if (code === 0 && out.trim() === '{"planwarden": "no opinion"}') resolve("no opinion")
      else reject(new Error(said.trim() || "planwarden: this call is blocked"))
    })
    child.stdin.end(JSON.stringify(event))
  })
}

export const PlanwardenGuard = async ({ client, directory }) => {
  const allowed = new Set()
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
    // opencode asks too where its settings say so. What a rule or a person allowed is not asked about twice.
    event: async ({ event }) => {
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
