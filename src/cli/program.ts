import { Console } from "node:console";
import { readFileSync } from "node:fs";
import type { Command } from "commander";
import { KnownCommand } from "./command.ts";
import { readConfig } from "./config.ts";
import { isJson } from "./terminal/output.ts";

/** These work without a config, also where there is one that does not load. */
const WITHOUT_CONFIG = new Set(["init", "completion"]);

/** All commands, in the order of the help. */
const COMMANDS: [name: string, load: () => Promise<(parent: Command) => void>][] = [
  ["run", async () => (await import("./run/index.ts")).runCommand],
  ["plan", async () => (await import("./plan.ts")).planCommand],
  ["work", async () => (await import("./work.ts")).workCommand],
  ["stop", async () => (await import("./stop.ts")).stopCommand],
  ["enqueue", async () => (await import("./enqueue.ts")).enqueueCommand],
  ["claim", async () => (await import("./claim.ts")).claimCommand],
  ["renew", async () => (await import("./renew.ts")).renewCommand],
  ["settle", async () => (await import("./settle.ts")).settleCommand],
  ["status", async () => (await import("./status/index.ts")).statusCommand],
  ["health", async () => (await import("./health.ts")).healthCommand],
  ["metrics", async () => (await import("./metrics.ts")).metricsCommand],
  ["jobs", async () => (await import("./jobs/index.ts")).jobsCommand],
  ["queues", async () => (await import("./queues/index.ts")).queuesCommand],
  ["quarantine", async () => (await import("./quarantine/index.ts")).quarantineCommand],
  ["schedules", async () => (await import("./schedules/index.ts")).schedulesCommand],
  ["builds", async () => (await import("./builds/index.ts")).buildsCommand],
  ["artifacts", async () => (await import("./artifacts/index.ts")).artifactsCommand],
  ["events", async () => (await import("./events/index.ts")).eventsCommand],
  ["audit", async () => (await import("./audit/index.ts")).auditCommand],
  ["recover", async () => (await import("./recover.ts")).recoverCommand],
  ["backup", async () => (await import("./backup.ts")).backupCommand],
  ["restore", async () => (await import("./restore.ts")).restoreCommand],
  ["doctor", async () => (await import("./doctor/index.ts")).doctorCommand],
  ["salvage", async () => (await import("./salvage.ts")).salvageCommand],
  ["unlock", async () => (await import("./unlock.ts")).unlockCommand],
  ["init", async () => (await import("./init.ts")).initCommand],
  ["completion", async () => (await import("./completion/index.ts")).completionCommand],
];

/** Every command, or the one that is called with these arguments. */
export async function program(args: readonly string[] = []): Promise<Command> {
  const root = new KnownCommand("holdfast")
    .description("A crash-safe job queue and staged pipelines in one SQLite file, or on a PostgreSQL server.")
    .version(version(), "-v, --version")
    .option(
      "--db <path>",
      "the database: a file, or postgres://… (default: HOLDFAST_DB, else the config's, else .holdfast/work.db)",
    )
    .option("--schema <name>", "on PostgreSQL, the schema of Holdfast's tables (default: the config's, else holdfast)")
    .option("--artifacts <folder>", "where large outputs and artifacts are (default: the config's, else beside the file)")
    .option("--config <path>", "the config (default: holdfast.config.ts, .js or .mjs in this folder, if there is one)")
    .option("--no-config", "read no config, also where there is one in this folder")
    .option("--json", "only JSON on standard output, logs on standard error")
    .configureHelp({ showGlobalOptions: true })
    .configureOutput({ outputError: () => {} })
    .exitOverride()
    .hook("preAction", async (_root, command) => {
      // Before anybody's module is loaded: what it logs is no JSON of ours.
      if (isJson(command)) globalThis.console = new Console(process.stderr);
      if (!WITHOUT_CONFIG.has(command.name())) await readConfig(command);
    })
    .addHelpText(
      "after",
      `
Example:
  holdfast enqueue resize '{"url":"https://example.com/a.png"}' --module jobs.ts
  holdfast work jobs.ts
  holdfast run docs.ts
  holdfast status

Exit codes: 0 done, 1 work failed, 2 wrong usage, 3 paused for approval,
4 lock held by a live process, 5 damaged database, 130 interrupted.`,
    );
  const word = commandIn(root, args);
  // A script runs one command of two dozen, time and again, and need not load the others. Help and completion know them all.
  const one = word === undefined || word === "completion" ? undefined : COMMANDS.find(([name]) => name === word);
  for (const [, load] of one === undefined ? COMMANDS : [one]) (await load())(root);
  return root;
}

/** The first word that is no option, and no option's value. */
function commandIn(root: Command, args: readonly string[]): string | undefined {
  const takesValue = (word: string) => root.options.some(({ long, required }) => required && long === word);
  return args.find((word, i) => !word.startsWith("-") && !takesValue(args[i - 1] ?? ""));
}

export function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}
