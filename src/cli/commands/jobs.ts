import type { Command } from "commander";
import { age, ahead, instant } from "../../core/age.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Job, JobState } from "../../core/job.ts";
import { plural } from "../../core/words.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import type { Page } from "../../runtime/jobs.ts";
import { Operator } from "../../runtime/operator.ts";
import { atLeastOne, idsOrAll, stateOption } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { type Column, oneLine, paint, printable, stateStyle, table } from "../render/table.ts";
import { actOnJobs, examples, noSuchJob } from "../verb.ts";

export function jobsCommand(parent: Command): void {
  const jobs = parent
    .command("jobs")
    .summary("look at jobs, retry or cancel them")
    .description("Look at jobs, and retry or cancel them.")
    .addHelpText("after", examples("holdfast jobs list --state failed"));
  for (const add of [listJobs, showJob, retryJobs, cancelJobs]) add(jobs);
}

interface ListOptions {
  queue?: string;
  name?: string;
  state?: JobState;
  limit: number;
  after?: string;
}

function listJobs(parent: Command): void {
  parent
    .command("list")
    .summary("list jobs in the order they were made")
    .description("List jobs in the order they were made.")
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .addOption(stateOption())
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast jobs list --state failed", "holdfast jobs list --queue mail --limit 10 --json"))
    .action(async (options: ListOptions, command: Command) => {
      await using hf = await openExisting(command);
      const page = await hf.jobs.list(options);
      answer(command, page, () => jobTable(page, new Operator(hf).now()));
    });
}

function showJob(parent: Command): void {
  parent
    .command("show")
    .summary("everything about one job")
    .description("Show everything about one job.")
    .argument("<id>", "the job's id")
    .addHelpText("after", examples("holdfast jobs show 1p0k9r3zq00000007", "holdfast jobs show invoice-2026-001 --json"))
    .action(async (id: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const job = await hf.jobs.get(id);
      if (job === null) throw noSuchJob(id);
      answer(command, job, () => jobPage(job, new Operator(hf).now()));
    });
}

function jobPage(job: Job, now: number): string {
  const facts: [string, string | undefined][] = [
    ["id", job.id],
    ["name", job.name],
    ["queue", job.queue],
    ["key", job.key],
    ["state", paint(stateStyle(job.state), job.state)],
    ["attempt", String(job.attempt)],
    ["crashes", String(job.crashes)],
    ["priority", String(job.priority)],
    ["created", instant(job.createdAt, now)],
    ["runs at", job.state === "pending" && job.runAt > now ? instant(job.runAt, now) : undefined],
    ["started", job.startedAt === undefined ? undefined : instant(job.startedAt, now)],
    ["finished", job.finishedAt === undefined ? undefined : instant(job.finishedAt, now)],
    ["worker", job.worker],
    ["process", job.pid === undefined ? undefined : `pid ${job.pid} on ${job.host}`],
    ["lease", job.leaseExpiresAt === undefined ? undefined : `until ${instant(job.leaseExpiresAt, now)}`],
    ["progress", progressText(job)],
  ];
  const lines = facts.flatMap(([label, value]) => {
    if (value === undefined) return [];
    return `${paint("dim", label.padEnd(10))}${label === "state" ? value : oneLine(value)}`;
  });
  lines.push(block("input", job.input === undefined ? undefined : JSON.stringify(job.input, null, 2)));
  lines.push(block("output", job.output === undefined ? undefined : JSON.stringify(job.output, null, 2)));
  lines.push(block("error", errorText(job)));
  return lines.filter((line) => line !== "").join("\n");
}

function progressText({ progress }: Job): string | undefined {
  if (progress === undefined) return undefined;
  return `${Math.floor(progress.fraction * 100)}%${progress.message === undefined ? "" : ` ${progress.message}`}`;
}

/** The stack begins with the name and the message. */
function errorText({ error }: Job): string | undefined {
  if (error === undefined) return undefined;
  const code = error.code === undefined ? "" : ` [${error.code}]`;
  return error.stack === undefined ? `${error.name}: ${error.message}${code}` : error.stack + code;
}

function block(label: string, text: string | undefined): string {
  if (text === undefined) return "";
  const indented = printable(text).replaceAll("\n", `\n${" ".repeat(10)}`);
  return `${paint("dim", label.padEnd(10))}${label === "error" ? paint("yellow", indented) : indented}`;
}

function retryJobs(parent: Command): void {
  parent
    .command("retry")
    .summary("start failed or quarantined jobs anew")
    .description("Start failed or quarantined jobs anew, with fresh counts.")
    .argument("<ids...>", "ids of jobs")
    .addHelpText("after", examples("holdfast jobs retry 1p0k9r3zq00000007"))
    .action(async (ids: string[], _options: object, command: Command) => {
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, ids, {
        done: "retried",
        act: (id) => hf.jobs.retry(id),
        refuse: ({ state }) => `It is ${state}; only failed and quarantined jobs can be retried.`,
      });
    });
}

function cancelJobs(parent: Command): void {
  parent
    .command("cancel")
    .summary("cancel jobs that have not finished")
    .description("Cancel jobs that have not finished. A running one's signal aborts, and nothing of the attempt is kept.")
    .argument("<ids...>", "ids of jobs")
    .addHelpText("after", examples("holdfast jobs cancel 1p0k9r3zq00000007"))
    .action(async (ids: string[], _options: object, command: Command) => {
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, ids, {
        done: "cancelled",
        act: (id) => hf.jobs.cancel(id),
        refuse: ({ state }) => `It is ${state} already.`,
      });
    });
}

/** A page of jobs, for people. */
function jobTable(page: Page<Job>, now: number): string {
  if (page.items.length === 0) return paint("dim", "No jobs.");
  const columns: Column<Job>[] = [
    { title: "ID", value: ({ id }) => id, least: 17 },
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "STATE", value: ({ state }) => state, style: ({ state }) => stateStyle(state) },
    { title: "TRY", right: true, value: ({ attempt }) => String(attempt) },
    { title: "AGE", right: true, value: ({ createdAt }) => age(now - createdAt) },
    { title: "NOTE", value: (job) => note(job, now), least: 12, style: () => "dim" },
  ];
  if (page.items.some(({ state }) => state === "running")) {
    const left = ({ leaseExpiresAt }: Job) => (leaseExpiresAt === undefined ? "" : leaseLeft(leaseExpiresAt - now));
    columns.splice(-1, 0, { title: "WORKER", value: holder, least: 8 }, { title: "LEASE", right: true, value: left });
  }
  // Most queues are called like their job.
  if (page.items.some(({ name, queue }) => name !== queue)) {
    columns.splice(2, 0, { title: "QUEUE", value: ({ queue }) => queue, least: 8 });
  }
  const more = page.next === undefined ? "" : `\n${paint("dim", `More: --after ${page.next}`)}`;
  return table(columns, page.items) + more;
}

/** Who holds a running job: the name of its claim, and the process. */
function holder({ worker = "", host, pid }: Job): string {
  const process = pid === undefined ? "" : `${host}:${pid}`;
  return worker === process || process === "" ? worker : `${worker} ${process}`;
}

function leaseLeft(millis: number): string {
  return millis > 0 ? ahead(millis) : "expired";
}

/** What matters most about it, in a few words. */
function note(job: Job, now: number): string {
  if (job.state === "pending" && job.runAt > now) {
    return `in ${ahead(job.runAt - now)}${job.error === undefined ? "" : `: ${job.error.message}`}`;
  }
  if (job.error !== undefined && job.state !== "succeeded") return job.error.message;
  if (job.state !== "running" || job.progress === undefined) return "";
  const { fraction, message } = job.progress;
  return `${Math.floor(fraction * 100)}%${message === undefined ? "" : ` ${message}`}`;
}

export function quarantineCommand(parent: Command): void {
  const quarantine = parent
    .command("quarantine")
    .summary("jobs that crashed their workers: look, retry, remove")
    .description("Jobs that crashed their workers, or whose input cannot be read: look at them, retry or remove them.")
    .addHelpText("after", examples("holdfast quarantine list"));
  for (const add of [listQuarantined, retryQuarantined, purgeQuarantined]) add(quarantine);
}

function listQuarantined(parent: Command): void {
  parent
    .command("list")
    .summary("list the quarantined jobs")
    .description("List the quarantined jobs.")
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast quarantine list"))
    .action(async (options: { queue?: string; name?: string; limit: number; after?: string }, command: Command) => {
      await using hf = await openExisting(command);
      const page = await hf.jobs.list({ ...options, state: "quarantined" });
      answer(command, page, () =>
        page.items.length === 0 ? paint("dim", "Nothing is quarantined.") : jobTable(page, new Operator(hf).now()),
      );
    });
}

function retryQuarantined(parent: Command): void {
  parent
    .command("retry")
    .summary("give quarantined jobs another chance")
    .description("Give quarantined jobs another chance, with fresh counts.")
    .argument("[ids...]", "ids of quarantined jobs")
    .option("--all", "all of them")
    .addHelpText("after", examples("holdfast quarantine retry 1p0k9r3zq00000007", "holdfast quarantine retry --all"))
    .action(async (ids: string[], options: { all?: boolean }, command: Command) => {
      idsOrAll(ids, options.all);
      await using hf = await openExisting(command);
      await actOnJobs(command, hf, options.all ? await quarantinedIds(hf) : ids, {
        done: "retried",
        act: async (id) => (await isQuarantined(hf, id)) && hf.jobs.retry(id),
        refuse: ({ state }) => `It is ${state}, not quarantined.`,
      });
    });
}

function purgeQuarantined(parent: Command): void {
  parent
    .command("purge")
    .summary("remove quarantined jobs for good")
    .description("Remove quarantined jobs for good, their inputs too.")
    .argument("[ids...]", "ids of quarantined jobs")
    .option("--all", "all of them; needs --yes")
    .option("--yes", "do not ask")
    .addHelpText("after", examples("holdfast quarantine purge 1p0k9r3zq00000007", "holdfast quarantine purge --all --yes"))
    .action(async (ids: string[], options: { all?: boolean; yes?: boolean }, command: Command) => {
      idsOrAll(ids, options.all);
      await using hf = await openExisting(command);
      const chosen = options.all ? await quarantinedIds(hf) : ids;
      if (options.all && !options.yes) throw notConfirmed(chosen.length);
      await actOnJobs(command, hf, chosen, {
        done: "purged",
        act: async (id) => (await isQuarantined(hf, id)) && (await new Operator(hf).purge(id)),
        refuse: ({ state }) => `It is ${state}, not quarantined.`,
      });
    });
}

function notConfirmed(count: number): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `This would remove ${plural(count, "quarantined job")} for good, so nothing was removed.`,
    "Add --yes if that is what you want, or give the ids of those to remove.",
  );
}

const PAGE_SIZE = 1_000;

/** All of them, read before the first is touched. */
async function quarantinedIds(hf: Holdfast): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await hf.jobs.list({ state: "quarantined", limit: PAGE_SIZE, after });
    ids.push(...page.items.map(({ id }) => id));
    after = page.next;
    if (after === undefined) return ids;
  }
}

async function isQuarantined(hf: Holdfast, id: string): Promise<boolean> {
  return (await hf.jobs.get(id))?.state === "quarantined";
}
