import { Console } from "node:console";
import { readFileSync } from "node:fs";
import { Command, type ErrorOptions, Help } from "commander";
import { HoldfastError } from "../core/text/errors.ts";
import { readConfig } from "./config.ts";
import { isJson } from "./render/output.ts";

/** Commands that read no config, also if there is one that does not load. */
const WITHOUT_CONFIG = new Set(["init", "completion"]);

/** All commands in the order of the help, which shows usage and summary without loading any of them. */
const COMMANDS: [usage: string, summary: string, load: () => Promise<(parent: Command) => void>][] = [
  [
    "run [options] <pipeline>",
    "build a pipeline: start, or resume its last build",
    async () => (await import("./commands/run.ts")).runCommand,
  ],
  [
    "plan [options] <pipeline>",
    "what a run would do and cost, without doing it",
    async () => (await import("./commands/plan.ts")).planCommand,
  ],
  [
    "work [options] [files...]",
    "run jobs until a signal, or `holdfast stop`",
    async () => (await import("./commands/work.ts")).workCommand,
  ],
  [
    "stop [options] [pids...]",
    "ask the workers to stop, and wait until they are gone",
    async () => (await import("./commands/work.ts")).stopCommand,
  ],
  [
    "enqueue [options] <name> [json]",
    "put a job into its queue",
    async () => (await import("./commands/enqueue.ts")).enqueueCommand,
  ],
  [
    "claim [options] [queue]",
    "take a job by hand, to settle it later",
    async () => (await import("./commands/claims.ts")).claimCommand,
  ],
  ["renew [options] <claim>", "hold a claimed job for longer", async () => (await import("./commands/claims.ts")).renewCommand],
  [
    "settle [options] <claim>",
    "end a claimed job: succeeded, failed or given back",
    async () => (await import("./commands/claims.ts")).settleCommand,
  ],
  [
    "status [options]",
    "how the queues stand, and what needs attention",
    async () => (await import("./commands/status.ts")).statusCommand,
  ],
  ["health [options]", "one line and an exit code, for probes", async () => (await import("./commands/health.ts")).healthCommand],
  ["metrics", "figures for Prometheus, once", async () => (await import("./commands/health.ts")).metricsCommand],
  ["jobs", "look at jobs, retry or cancel them", async () => (await import("./commands/jobs.ts")).jobsCommand],
  ["queues", "how each queue stands: list, pause, resume", async () => (await import("./commands/queues.ts")).queuesCommand],
  [
    "quarantine",
    "jobs that crashed their workers: look, retry, remove",
    async () => (await import("./commands/jobs.ts")).quarantineCommand,
  ],
  [
    "schedules",
    "what is enqueued when: list, pause, resume, trigger, remove",
    async () => (await import("./commands/schedules.ts")).schedulesCommand,
  ],
  ["builds", "look at builds, resume or end them", async () => (await import("./commands/builds.ts")).buildsCommand],
  [
    "artifacts",
    "read stored bytes, or remove those without a reference",
    async () => (await import("./commands/artifacts.ts")).artifactsCommand,
  ],
  [
    "events [options]",
    "what happened, and how far each sink has read",
    async () => (await import("./commands/events.ts")).eventsCommand,
  ],
  ["audit [options]", "who did what, and whether that is all", async () => (await import("./commands/audit.ts")).auditCommand],
  [
    "recover [options]",
    "reclaim what dead processes held, and show the reports",
    async () => (await import("./commands/recover.ts")).recoverCommand,
  ],
  [
    "backup [options] [path]",
    "copy the database while it is in use, and check the copy",
    async () => (await import("./commands/backup.ts")).backupCommand,
  ],
  [
    "restore [options] [backup]",
    "put a backup in the place of the database",
    async () => (await import("./commands/backup.ts")).restoreCommand,
  ],
  [
    "doctor [options]",
    "check the database, and say what mends it",
    async () => (await import("./commands/doctor.ts")).doctorCommand,
  ],
  [
    "salvage [options]",
    "make a new database of what can be read of a damaged one",
    async () => (await import("./commands/backup.ts")).salvageCommand,
  ],
  [
    "unlock [options] [name]",
    "remove a lock that was left behind",
    async () => (await import("./commands/unlock.ts")).unlockCommand,
  ],
  ["init", "write a config and a first job", async () => (await import("./commands/init.ts")).initCommand],
  [
    "completion <shell>",
    "print a script that completes commands in a shell",
    async () => (await import("./commands/completion.ts")).completionCommand,
  ],
];

/** The program with the command that these arguments name, or with all commands. */
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
      // What a user's module logs must not end up in the JSON on standard output.
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
  if (word === undefined && args.length > 0) return listed(root);
  // Load only the command that runs. Completion needs all of them.
  const one = word === "completion" ? undefined : COMMANDS.find(([usage]) => nameIn(usage) === word);
  for (const [, summary, load] of one === undefined ? COMMANDS : [one]) {
    (await load())(root);
    root.commands.at(-1)?.summary(summary);
  }
  return root;
}

/** Adds the commands by name and summary only, for help and version. */
function listed(root: Command): Command {
  const usages = new Map(COMMANDS.map(([usage]) => [nameIn(usage), usage]));
  for (const [usage, summary] of COMMANDS) root.command(nameIn(usage)).summary(summary);
  const help = new Help();
  return root.configureHelp({ subcommandTerm: (command) => usages.get(command.name()) ?? help.subcommandTerm(command) });
}

function nameIn(usage: string): string {
  return usage.split(" ", 1)[0] as string;
}

/** The first word that is neither an option nor an option's value. */
function commandIn(root: Command, args: readonly string[]): string | undefined {
  const takesValue = (word: string) => root.options.some(({ long, required }) => required && long === word);
  return args.find((word, i) => !word.startsWith("-") && !takesValue(args[i - 1] ?? ""));
}

export function version(): string {
  // In the bundle this module is one folder higher.
  const file = new URL(import.meta.url.endsWith(".ts") ? "../../package.json" : "../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}

/** A command whose errors about unknown commands list the available ones. */
class KnownCommand extends Command {
  override createCommand(name?: string): Command {
    return new KnownCommand(name);
  }

  override error(message: string, options?: ErrorOptions): never {
    if (options?.code === "commander.unknownCommand") throw unknownCommand(message.replace(/^error: /, ""), this);
    if (options?.code === "commander.excessArguments") {
      // Commander reports `holdfast queues frob` as an excess argument of the group's default command.
      for (const group of [this, this.parent]) {
        const word = group === null ? undefined : unknownWord(group);
        if (group !== null && word !== undefined) throw unknownCommand(`unknown command '${word}'`, group);
      }
    }
    return super.error(message, options);
  }
}

/** The first argument, if it is none of the group's commands. */
function unknownWord({ commands, args: [word] }: Command): string | undefined {
  return commands.length === 0 || commands.some((command) => command.name() === word) ? undefined : word;
}

function unknownCommand(message: string, { commands }: Command): HoldfastError {
  const names = commands.map((command) => command.name()).join(", ");
  return new HoldfastError(
    "USAGE",
    message.replace(/\n\((.*)\)$/, ". $1"),
    `Commands: ${names}. Add --help to see their descriptions.`,
  );
}
