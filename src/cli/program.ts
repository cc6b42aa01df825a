import { Console } from "node:console";
import { readFileSync } from "node:fs";
import { Command, type ErrorOptions, Help } from "commander";
import { HoldfastError } from "../core/text/errors.ts";
import { isJson } from "./render/output.ts";

/** Commands that read no config, so that they also work beside a config that does not load. */
const WITHOUT_CONFIG = new Set(["init", "completion"]);

/** Loads a file of commands; it exports `workCommand` for the command `work`, and so on. */
const FILES: Record<string, () => Promise<object>> = {
  artifacts: () => import("./commands/artifacts.ts"),
  audit: () => import("./commands/audit.ts"),
  backup: () => import("./commands/backup.ts"),
  builds: () => import("./commands/builds.ts"),
  claims: () => import("./commands/claims.ts"),
  completion: () => import("./commands/completion.ts"),
  doctor: () => import("./commands/doctor.ts"),
  enqueue: () => import("./commands/enqueue.ts"),
  events: () => import("./commands/events.ts"),
  health: () => import("./commands/health.ts"),
  init: () => import("./commands/init.ts"),
  jobs: () => import("./commands/jobs.ts"),
  plan: () => import("./commands/plan.ts"),
  queues: () => import("./commands/queues.ts"),
  recover: () => import("./commands/recover.ts"),
  run: () => import("./commands/run.ts"),
  schedules: () => import("./commands/schedules.ts"),
  status: () => import("./commands/status.ts"),
  ui: () => import("./commands/ui.ts"),
  unlock: () => import("./commands/unlock.ts"),
  work: () => import("./commands/work.ts"),
};

/** All commands in the order of the help, which shows group, name and summary without loading any of them. */
const COMMANDS: [group: string, name: string, summary: string, file: keyof typeof FILES][] = [
  ["Jobs", "work", "run jobs until a signal, or `holdfast stop`", "work"],
  ["", "stop", "ask the workers to stop, and wait until they have", "work"],
  ["", "enqueue", "put a job into its queue", "enqueue"],
  ["", "claim", "claim a job by hand, to settle it later", "claims"],
  ["", "renew", "extend the lease of a claimed job", "claims"],
  ["", "settle", "settle a claimed job: succeed, fail or release", "claims"],
  ["", "jobs", "list, show, retry or cancel jobs", "jobs"],
  ["", "quarantine", "crashing or unreadable jobs: list, retry, purge", "jobs"],
  ["", "queues", "list, pause or resume queues", "queues"],
  ["", "schedules", "list, pause, resume, trigger or remove schedules", "schedules"],
  ["Pipelines", "run", "build a pipeline: start, or resume its last build", "run"],
  ["", "plan", "show what a run would do and cost, without doing it", "plan"],
  ["", "builds", "list, show, resume, approve, abandon or export builds", "builds"],
  ["", "artifacts", "read artifacts, or remove unreferenced ones", "artifacts"],
  ["Operate", "status", "state of the queues, and what needs attention", "status"],
  ["", "ui", "serve the dashboard and the HTTP API", "ui"],
  ["", "health", "one line and an exit code, for probes", "health"],
  ["", "metrics", "print metrics for Prometheus, once", "health"],
  ["", "events", "print events, and the position of each sink", "events"],
  ["", "audit", "print the audit log, and verify that it is complete", "audit"],
  ["", "backup", "copy the database while it is in use, and check it", "backup"],
  ["Recover", "recover", "reclaim what dead processes held; show reports", "recover"],
  ["", "doctor", "check the database, and say what to do", "doctor"],
  ["", "restore", "replace the database with a backup", "backup"],
  ["", "salvage", "make a new database from a damaged one", "backup"],
  ["", "unlock", "remove a lock that a dead process left", "unlock"],
  ["Develop", "init", "write a config and a first job", "init"],
  ["", "completion", "print a script that completes commands in a shell", "completion"],
];

export async function program(args: readonly string[] = []): Promise<Command> {
  const root = new KnownCommand("holdfast")
    .description("A crash-safe job queue and staged pipelines in one SQLite file, or on a PostgreSQL server.")
    .version(version(), "-v, --version")
    .option("--db <path>", "file, or postgres://…")
    .option("--schema <name>", "PostgreSQL schema (default: holdfast)")
    .option("--artifacts <folder>", "folder of artifacts (default: beside the file)")
    .option("--config <path>", "config file (default: holdfast.config.ts or .js)")
    .option("--no-config", "read no config file")
    .option("--json", "print only JSON on standard output")
    .configureHelp({ formatHelp: (command, help) => formatHelp(command, help) })
    .configureOutput({ outputError: () => {} })
    .exitOverride()
    .hook("preAction", async (_root, command) => {
      // What a user's module logs must not end up in the JSON on standard output.
      if (isJson(command)) globalThis.console = new Console(process.stderr);
      if (!WITHOUT_CONFIG.has(command.name())) await (await import("./config.ts")).readConfig(command);
    });
  const word = commandIn(root, args);
  if (word === undefined && args.length > 0) {
    for (const [, name, summary] of COMMANDS) root.command(name).summary(summary);
    return root;
  }
  // Load only the command that runs. Completion needs all of them.
  const one = word === "completion" ? undefined : COMMANDS.find(([, name]) => name === word);
  for (const [, name, summary, file] of one === undefined ? COMMANDS : [one]) {
    const exported = (await FILES[file]?.()) as Record<string, (parent: Command) => void>;
    exported[`${name}Command`]?.(root);
    root.commands.at(-1)?.summary(summary);
  }
  return root;
}

function formatHelp(command: Command, help: Help): string {
  if (command.parent !== null) return `${Help.prototype.formatHelp.call(help, command, help)}\nGlobal options: holdfast --help\n`;
  const options = command.options.filter(({ long }) => long !== "--version");
  return [
    "Usage: holdfast [options] <command>; holdfast <command> --help for details\n\n",
    ...COMMANDS.map(([group, name, summary]) => row(group, name.padEnd(11), summary)),
    "\n",
    ...options.map(({ flags, description }, i) => row(i === 0 ? "Options" : "", flags.padEnd(20), description)),
    "Database: --db, else HOLDFAST_DB, else db of the config, else .holdfast/work.db\n",
    "Exit: 0 done, 1 failed, 2 usage, 3 paused, 4 locked, 5 damaged, 130 interrupted\n",
  ].join("");
}

function row(group: string, name: string, text: string): string {
  return `${group.padEnd(10)} ${name} ${text}\n`;
}

function commandIn(root: Command, args: readonly string[]): string | undefined {
  const takesValue = (word: string) => root.options.some(({ long, required }) => required && long === word);
  return args.find((word, i) => !word.startsWith("-") && !takesValue(args[i - 1] ?? ""));
}

export function version(): string {
  const file = new URL(import.meta.url.endsWith(".ts") ? "../../package.json" : "../package.json", import.meta.url);
  return (JSON.parse(readFileSync(file, "utf8")) as { version: string }).version;
}

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
