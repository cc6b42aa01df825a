import { Console } from "node:console";
import { readFileSync } from "node:fs";
import type { Command } from "commander";
import { artifactsCommand } from "./artifacts/index.ts";
import { auditCommand } from "./audit.ts";
import { backupCommand } from "./backup.ts";
import { buildsCommand } from "./builds/index.ts";
import { claimCommand } from "./claim.ts";
import { KnownCommand } from "./command.ts";
import { completionCommand } from "./completion/index.ts";
import { readConfig } from "./config.ts";
import { enqueueCommand } from "./enqueue.ts";
import { eventsCommand } from "./events/index.ts";
import { healthCommand } from "./health.ts";
import { initCommand } from "./init.ts";
import { jobsCommand } from "./jobs/index.ts";
import { planCommand } from "./plan.ts";
import { quarantineCommand } from "./quarantine/index.ts";
import { queuesCommand } from "./queues/index.ts";
import { recoverCommand } from "./recover.ts";
import { renewCommand } from "./renew.ts";
import { runCommand } from "./run/index.ts";
import { schedulesCommand } from "./schedules/index.ts";
import { settleCommand } from "./settle.ts";
import { statusCommand } from "./status/index.ts";
import { stopCommand } from "./stop.ts";
import { unlockCommand } from "./unlock.ts";
import { isJson } from "./terminal/output.ts";
import { workCommand } from "./work.ts";

/** These work without a config, also where there is one that does not load. */
const WITHOUT_CONFIG = new Set(["init", "completion"]);

/** Every command. */
export function program(): Command {
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
  for (const add of [
    runCommand,
    planCommand,
    workCommand,
    stopCommand,
    enqueueCommand,
    claimCommand,
    renewCommand,
    settleCommand,
    statusCommand,
    healthCommand,
    jobsCommand,
    queuesCommand,
    quarantineCommand,
    schedulesCommand,
    buildsCommand,
    artifactsCommand,
    eventsCommand,
    auditCommand,
    recoverCommand,
    backupCommand,
    unlockCommand,
    initCommand,
    completionCommand,
  ]) {
    add(root);
  }
  return root;
}

function version(): string {
  const file = new URL("../../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}
