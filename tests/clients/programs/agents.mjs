// Agents of the command line, each by its name: a session with a simulated engine that is told its calls, see
// tests/support/told_calls.py. What a shell prints reaches the last word of a turn only by all that lies between.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { apiKey, baseURL, run, told } from "./calls.mjs";

const home = mkdtempSync(join(tmpdir(), "agent-"));

// What a program of this environment wrote, first to its output and then to its log.
function ended(program, args, environment) {
  const done = spawnSync("node", [join(process.cwd(), "node_modules", program), ...args], {
    cwd: home,
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "pipe"],
    encoding: "utf8",
    maxBuffer: 2 ** 26,
    timeout: 120_000,
  });
  console.error(done.stderr);
  if (done.status !== 0) throw new Error(`${program} ended with ${done.status}: ${(done.stderr || done.stdout).slice(-400)}`);
  return [done.stdout, done.stderr];
}

const CODEX = `
model = "${told}"
model_provider = "streamfleet"
check_for_update_on_startup = false
[model_providers.streamfleet]
name = "streamfleet"
base_url = "${baseURL}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
[analytics]
enabled = false
`;

const agents = {
  codex: {
    // A turn: the last word, and the log.
    turn(prompt, goesOn = true) {
      writeFileSync(join(home, "config.toml"), CODEX);
      const last = join(home, "last");
      // Its sandbox needs rights that a container may not give; here is no network anyway.
      const options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-o", last];
      const args = ["exec", ...(goesOn ? ["resume", "--last"] : []), ...options, prompt];
      const [, log] = ended("@openai/codex/bin/codex.js", args, { CODEX_HOME: home, OPENAI_API_KEY: apiKey, RUST_LOG: "codex_http_client=debug" });
      return [readFileSync(last, "utf8"), log];
    },
    shell: (cmd) => `call exec_command ${JSON.stringify({ cmd })}`,
    more: {
      "web search left out": async () =>
        agents.codex.turn("Hello")[1].includes('"x-streamfleet-ignored": "tools.web_search"'),
    },
  },
  claude: {
    turn(prompt, goesOn = true) {
      const options = ["--print", "--model", told, "--allowedTools", "Bash"];
      const environment = {
        ANTHROPIC_BASE_URL: baseURL.replace("/v1", ""),
        ANTHROPIC_API_KEY: apiKey,
        CLAUDE_CONFIG_DIR: join(home, "config"),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
      };
      const args = [...options, ...(goesOn ? ["--continue"] : []), "--", prompt];
      return ended("@anthropic-ai/claude-code/cli-wrapper.cjs", args, environment);
    },
    shell: (command) => `call Bash ${JSON.stringify({ command })}`,
    more: {},
  },
};

const { turn, shell, more } = agents[process.argv[2]];
await run({
  "turn with a tool": async () => turn(shell("echo $((6 * 7)) | tee found"), false)[0].includes("42"),
  "turn with two calls": async () => {
    const calls = [shell("echo $((6 * 8)) >> found"), shell("cat found")];
    return turn(calls.join("\n"))[0].includes("42\n48");
  },
  "turn that remembers": async () => turn("What was found?")[0].includes("42\n48"),
  ...more,
});
rmSync(home, { recursive: true });
