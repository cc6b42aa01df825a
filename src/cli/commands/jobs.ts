import { createInterface } from "node:readline/promises";
import { type Command, InvalidArgumentError, Option } from "commander";
import type { AttemptView } from "../../core/jobs/attempts.ts";
import { ageText, clockText, durationText, instantText, untilText } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { type JobFilter, parseInputPair } from "../../core/jobs/filter.ts";
import { type Job, JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { definedOnly } from "../../core/text/options.ts";
import { plural } from "../../core/text/text.ts";
import type { Holdfast } from "../../holdfast.ts";
import type { MatchingAction } from "../../engine/all-matching.ts";
import { collect, idsOrAll, parseInstant } from "../arguments.ts";
import { isJson } from "../render/output.ts";
import { type Column, labelled, oneLine, paint, printable, JOB_STYLES, type Style, table, tableOr } from "../render/table.ts";
import { noSuchJob, type Page } from "../../engine/client.ts";
import { actOnJobs, addCommand, addPageOptions, type Answer, onDatabase, type OpenDatabase } from "../verb.ts";

export function jobsCommand(parent: Command): void {
  const jobs = addCommand(parent, "jobs", {
    description: "List, show, retry, cancel and remove jobs.",
    examples: ["holdfast jobs list --state failed"],
  });
  addList(jobs);
  addShow(jobs);
  addWhy(jobs);
  addAction(jobs, "retry", {
    summary: "run failed or quarantined jobs again",
    description: "Run failed or quarantined jobs, with all attempts again: those with these ids, or all that match.",
    examples: ["holdfast jobs retry 1p0k9r3zq00000007", "holdfast jobs retry --state failed --queue mail --error timeout"],
    done: "retried",
    act: ({ hf }, id) => hf.jobs.retry(id),
    refuse: ({ state }) => `Its state is ${state}; only failed and quarantined jobs can be retried.`,
  });
  addAction(jobs, "cancel", {
    summary: "cancel jobs that have not finished",
    description:
      "Cancel jobs that have not finished: those with these ids, or all that match. The signal of a running handler aborts, and its result is discarded.",
    examples: ["holdfast jobs cancel 1p0k9r3zq00000007", "holdfast jobs cancel --tag import --yes"],
    done: "cancelled",
    act: ({ hf }, id) => hf.jobs.cancel(id),
    refuse: ({ state }) => `It has already finished (${state}).`,
  });
  addAction(jobs, "remove", {
    summary: "remove finished jobs for good",
    description: "Remove finished jobs for good: those with these ids, or all that match. Ids that were chosen stay taken.",
    examples: ["holdfast jobs remove 1p0k9r3zq00000007", "holdfast jobs remove --state succeeded --finished-before 2026-01-01"],
    done: "removed",
    act: ({ operator }, id) => operator.remove(id),
    refuse: ({ state }) => `Its state is ${state}; only finished jobs can be removed.`,
  });
}

export function quarantineCommand(parent: Command): void {
  const quarantine = addCommand(parent, "quarantine", {
    description: "Jobs that crashed their workers, or whose input cannot be read: look at them, retry or remove them.",
    examples: ["holdfast quarantine list"],
  });
  addListQuarantined(quarantine);
  addQuarantineAction(quarantine, "retry", {
    summary: "run quarantined jobs again",
    description: "Run quarantined jobs, with all attempts again.",
    examples: ["holdfast quarantine retry 1p0k9r3zq00000007", "holdfast quarantine retry --all"],
    done: "retried",
    act: ({ hf }, id) => hf.jobs.retry(id),
  });
  addQuarantineAction(quarantine, "purge", {
    summary: "remove quarantined jobs for good",
    description: "Remove quarantined jobs for good, their inputs too.",
    examples: ["holdfast quarantine purge 1p0k9r3zq00000007", "holdfast quarantine purge --all --yes"],
    done: "purged",
    act: ({ operator }, id) => operator.remove(id, ["quarantined"]),
    isFinal: true,
  });
}

function addList(jobs: Command): void {
  const list = addCommand(jobs, "list", {
    summary: "list jobs, newest first",
    examples: [
      "holdfast jobs list --state failed --state quarantined --error timeout",
      "holdfast jobs list --queue mail --input user.id=7 --limit 10 --json",
    ],
  });
  addPageOptions(addFilterOptions(list))
    .addOption(new Option("--order <order>", "by creation").choices(["newest", "oldest"]).default("newest"))
    .action(
      onDatabase(async ({ hf, operator }, { limit, order, after, ...options }: ListOptions) => {
        const page = await fullPage(hf, { ...filterOf(options), limit, order, ...definedOnly({ after }) });
        return [page, () => jobTable(page, operator.now(), "No jobs.")];
      }),
    );
}

type ListOptions = FilterOptions & { order: "newest" | "oldest"; limit: number; after?: string };

async function fullPage(
  hf: Holdfast,
  query: JobFilter & { limit: number; order: "newest" | "oldest"; after?: string },
): Promise<Page<Job>> {
  const page = await hf.jobs.list(query);
  while (page.next !== undefined && page.items.length < query.limit) {
    const { items, next } = await hf.jobs.list({ ...query, limit: query.limit - page.items.length, after: page.next });
    page.items.push(...items);
    if (next === undefined) delete page.next;
    else page.next = next;
  }
  return page;
}

function addListQuarantined(quarantine: Command): void {
  const list = addCommand(quarantine, "list", {
    summary: "list the quarantined jobs",
    examples: ["holdfast quarantine list"],
  })
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name");
  addPageOptions(list).action(
    onDatabase(async ({ hf, operator }, options: Parameters<Holdfast["jobs"]["list"]>[0]) => {
      const page = await hf.jobs.list({ ...options, state: "quarantined" });
      return [page, () => jobTable(page, operator.now(), "Nothing is quarantined.")];
    }),
  );
}

function addShow(jobs: Command): void {
  addCommand(jobs, "show", {
    summary: "show one job",
    description: "Show one job with its input, output, error, holder and attempts.",
    examples: ["holdfast jobs show 1p0k9r3zq00000007", "holdfast jobs show invoice-2026-001 --json"],
  })
    .argument("<id>", "the job's id")
    .action(
      onDatabase(async ({ hf, operator }, id: string, _options: object) => {
        const job = await hf.jobs.get(id);
        if (job === null) throw noSuchJob(id);
        const attempts = await hf.jobs.attempts(id);
        return [{ ...job, attempts }, () => `${jobPage(job, operator.now())}${attemptTable(attempts, operator.now())}`];
      }),
    );
}

function addWhy(jobs: Command): void {
  addCommand(jobs, "why", {
    summary: "say why a job does not run",
    description:
      "Say why a job does not run: a paused queue or build, a delay, a lock, a limit and its next free slot, the jobs that it " +
      "waits for, no worker for its name and version, or the jobs before it.",
    examples: ["holdfast jobs why 1p0k9r3zq00000007"],
  })
    .argument("<id>", "the job's id")
    .action(
      onDatabase(async ({ hf }, id: string, _options: object) => {
        const explanation = await hf.jobs.explain(id);
        if (explanation === null) throw noSuchJob(id);
        return [explanation, () => `${explanation.reason}: ${oneLine(explanation.message)}`];
      }),
    );
}

interface Action {
  summary: string;
  description: string;
  examples: readonly string[];
  done: string;
  act: (database: OpenDatabase, id: string) => Promise<boolean>;
  refuse: (job: Job) => string;
}

function addAction(jobs: Command, action: MatchingAction, { done, act, refuse, ...help }: Action): void {
  const command = addCommand(jobs, action, help).argument("[ids...]", "ids of jobs");
  addFilterOptions(command)
    .option("--yes", "change all that match without asking")
    .hook("preAction", idsOrFilter)
    .action(
      onDatabase(async (database, ids: string[], { yes = false, ...options }: FilterOptions & { yes?: boolean }) => {
        if (ids.length > 0) return actOnJobs(database.hf, ids, { done, act: (id) => act(database, id), refuse });
        return actOnMatching(database, action, done, filterOf(options), yes);
      }),
    );
}

async function actOnMatching(
  { hf, operator, command }: OpenDatabase,
  action: MatchingAction,
  done: string,
  filter: JobFilter,
  isConfirmed: boolean,
): Promise<Answer> {
  if (!isConfirmed) {
    const matched = await operator.countMatching(action, filter);
    if (matched > 0 && !(await isAgreed(command, `${plural(matched, "job")} would be ${done}. Continue? [y/N] `))) {
      throw new HoldfastError(
        "USAGE",
        `${plural(matched, "job")} would be ${done}; nothing was changed.`,
        "Add --yes to change all that match.",
      );
    }
  }
  const result = await hf.jobs[`${action}All`](filter);
  const { matched, changed } = result;
  const rest = matched === changed ? "" : ` ${plural(matched - changed, "job")} could not be ${done}.`;
  return [result, () => `${done[0]?.toUpperCase()}${done.slice(1)} ${plural(changed, "job")}.${rest}`];
}

async function isAgreed(command: Command, question: string): Promise<boolean> {
  if (isJson(command) || process.stdin.isTTY !== true || process.stdout.isTTY !== true) return false;
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    return /^y(es)?$/i.test((await terminal.question(question)).trim());
  } finally {
    terminal.close();
  }
}

interface QuarantineAction extends Omit<Action, "refuse"> {
  isFinal?: boolean;
}

function addQuarantineAction(quarantine: Command, name: string, { done, act, isFinal = false, ...help }: QuarantineAction): void {
  const command = addCommand(quarantine, name, help)
    .argument("[ids...]", "ids of quarantined jobs")
    .option("--all", isFinal ? "all of them; needs --yes" : "all of them");
  if (isFinal) command.option("--yes", "do not ask");
  command.hook("preAction", idsOrAll).action(
    onDatabase(async (database, ids: string[], { all, yes }: { all?: boolean; yes?: boolean }) => {
      const { hf } = database;
      const chosen = all ? await quarantinedIds(hf) : ids;
      if (all && isFinal && !yes) throw notConfirmed(chosen.length);
      return actOnJobs(hf, chosen, {
        done,
        act: async (id) => (await hf.jobs.get(id))?.state === "quarantined" && act(database, id),
        refuse: ({ state }) => `Its state is ${state}, not quarantined.`,
      });
    }),
  );
}

function notConfirmed(count: number): HoldfastError {
  return new HoldfastError(
    "USAGE",
    `This would remove ${plural(count, "quarantined job")} for good, so nothing was removed.`,
    "Add --yes to remove them, or give the ids of some.",
  );
}

const PAGE_SIZE = 1_000;

/** Returns the ids of all quarantined jobs. All are read before the first job is changed. */
async function quarantinedIds(hf: Holdfast): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await hf.jobs.list({ state: "quarantined", limit: PAGE_SIZE, after });
    ids.push(...page.items.map(({ id }) => id));
    after = page.next;
    if (after === undefined) return ids;
  }
}

function jobTable({ items, next }: Page<Job>, now: number, empty: string): string {
  const columns: Column<Job>[] = [
    { title: "ID", value: ({ id }) => id, least: 17 },
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "STATE", value: ({ state }) => state, style: ({ state }) => JOB_STYLES[state] },
    { title: "TRY", right: true, value: ({ attempt }) => String(attempt) },
    { title: "AGE", right: true, value: ({ createdAt }) => ageText(now - createdAt) },
    { title: "NOTE", value: (job) => noteOf(job, now), least: 12, style: () => "dim" },
  ];
  if (items.some(({ state }) => state === "running")) {
    const left = ({ leaseExpiresAt = Number.NaN }: Job) =>
      leaseExpiresAt > now ? untilText(leaseExpiresAt - now) : leaseExpiresAt <= now ? "expired" : "";
    columns.splice(-1, 0, { title: "WORKER", value: holderOf, least: 8 }, { title: "LEASE", right: true, value: left });
  }
  // Most queues have the name of their job, so the column is only shown if one has another name.
  if (items.some(({ name, queue }) => name !== queue)) {
    columns.splice(2, 0, { title: "QUEUE", value: ({ queue }) => queue, least: 8 });
  }
  const more = next === undefined ? "" : `\n${paint("dim", `More: --after ${next}`)}`;
  return tableOr(empty, columns, items) + more;
}

function holderOf({ worker = "", host, pid }: Pick<Job, "worker" | "host" | "pid">): string {
  const process = pid === undefined ? "" : `${host}:${pid}`;
  return worker === process || process === "" ? worker : `${worker} ${process}`;
}

function noteOf(job: Job, now: number): string {
  if (job.state === "pending" && job.runAt > now) {
    return `in ${untilText(job.runAt - now)}${job.error === undefined ? "" : `: ${job.error.message}`}`;
  }
  if (job.error !== undefined && job.state !== "succeeded") return job.error.message;
  return job.state === "running" ? (progressText(job) ?? "") : "";
}

function jobPage(job: Job, now: number): string {
  return labelled([
    ["id", oneLine(job.id)],
    ["name", oneLine(job.name)],
    ["queue", oneLine(job.queue)],
    ["key", job.key === undefined ? undefined : oneLine(job.key)],
    ["tags", job.tags === undefined ? undefined : oneLine(job.tags.join(", "))],
    ["state", paint(JOB_STYLES[job.state], job.state)],
    ["attempt", String(job.attempt)],
    ["crashes", String(job.crashes)],
    ["priority", String(job.priority)],
    ["created", instantText(job.createdAt, now)],
    ["runs at", job.state === "pending" && job.runAt > now ? instantText(job.runAt, now) : undefined],
    ["started", job.startedAt === undefined ? undefined : instantText(job.startedAt, now)],
    ["finished", job.finishedAt === undefined ? undefined : instantText(job.finishedAt, now)],
    ["worker", job.worker === undefined ? undefined : oneLine(job.worker)],
    ["process", job.pid === undefined ? undefined : oneLine(`pid ${job.pid} on ${job.host}`)],
    ["lease", job.leaseExpiresAt === undefined ? undefined : `until ${instantText(job.leaseExpiresAt, now)}`],
    ["progress", progressText(job)],
    ["input", job.input === undefined ? undefined : indented(JSON.stringify(job.input, null, 2))],
    ["output", job.output === undefined ? undefined : indented(JSON.stringify(job.output, null, 2))],
    ["error", job.error === undefined ? undefined : paint("yellow", indented(errorText(job.error)))],
  ]);
}

function attemptTable(attempts: readonly AttemptView[], now: number): string {
  if (attempts.length === 0) return "";
  const columns: Column<AttemptView>[] = [
    { title: "TRY", right: true, value: ({ attempt }) => String(attempt) },
    { title: "OUTCOME", value: ({ outcome }) => outcome, style: ({ outcome }) => outcomeStyle(outcome) },
    { title: "STARTED", value: ({ startedAt }) => clockText(startedAt) },
    { title: "TOOK", right: true, value: ({ startedAt, endedAt = now }) => durationText(Math.max(0, endedAt - startedAt)) },
    { title: "WORKER", value: holderOf, least: 8 },
    { title: "ERROR", value: ({ error }) => error?.message ?? "", least: 10, style: () => "dim" },
  ];
  return `\n\n${table(columns, attempts)}${attempts.map(logOf).join("")}`;
}

function logOf({ attempt, log = [] }: AttemptView): string {
  if (log.length === 0) return "";
  const lines = log.map(({ at, level, message, data }) => {
    const text = oneLine(`${message}${data === undefined ? "" : ` ${JSON.stringify(data)}`}`);
    return `  ${paint("dim", clockText(at))} ${paint(level === "info" ? "dim" : "yellow", level.padEnd(5))} ${text}`;
  });
  return `\n\nLog of attempt ${attempt}\n${lines.join("\n")}`;
}

function outcomeStyle(outcome: AttemptView["outcome"]): Style | null {
  if (outcome === "running" || outcome === "succeeded" || outcome === "cancelled") return JOB_STYLES[outcome];
  return outcome === "released" ? "dim" : "yellow";
}

function progressText({ progress }: Job): string | undefined {
  if (progress === undefined) return undefined;
  return oneLine(`${Math.floor(progress.fraction * 100)}%${progress.message === undefined ? "" : ` ${progress.message}`}`);
}

function errorText({ name, message, code, stack }: NonNullable<Job["error"]>): string {
  return (stack ?? `${name}: ${message}`) + (code === undefined ? "" : ` [${code}]`);
}

function indented(text: string): string {
  return printable(text).replaceAll("\n", `\n${" ".repeat(10)}`);
}

type FilterOptions = Omit<JobFilter, "state" | "input"> & { state?: JobState[]; input?: [string, Scalar][] };
type Scalar = NonNullable<JobFilter["input"]>[string];

function addFilterOptions(command: Command): Command {
  return command
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .addOption(new Option("--state <state>", "only jobs in this state; may be repeated").choices(JOB_STATES).argParser(oneState))
    .option("--key <key>", "only jobs with this key")
    .option("--tag <tag>", "only jobs with this tag")
    .option("--error <text>", "only jobs whose last error has this in its name, code or message")
    .option("--input <path=value>", "only jobs with this value in their input, e.g. user.id=7; may be repeated", onePair)
    .option("--created-after <date>", "only jobs created then or later", parseInstant)
    .option("--created-before <date>", "only jobs created before", parseInstant)
    .option("--finished-after <date>", "only jobs that ended then or later", parseInstant)
    .option("--finished-before <date>", "only jobs that ended before", parseInstant);
}

function filterOf(options: FilterOptions): JobFilter {
  const { queue, name, state, key, tag, error, createdAfter, createdBefore, finishedAfter, finishedBefore } = options;
  const input = options.input === undefined ? undefined : Object.fromEntries(options.input);
  const times = { createdAfter, createdBefore, finishedAfter, finishedBefore };
  return definedOnly({ queue, name, state, key, tag, error, input, ...times });
}

function oneState(text: string, all: JobState[] = []): JobState[] {
  const state = JOB_STATES.find((one) => one === text);
  if (state === undefined) throw new InvalidArgumentError(`Allowed choices are ${JOB_STATES.join(", ")}.`);
  return collect(state, all);
}

function onePair(text: string, all: [string, Scalar][] = []): [string, Scalar][] {
  const pair = parseInputPair(text);
  if (pair === null) throw new InvalidArgumentError("Give a path and its value, e.g. user.id=7.");
  return collect(pair, all);
}

/** Requires ids or a filter: an empty filter would match every job, and a typing mistake must not change them all. */
function idsOrFilter(command: Command): void {
  const { yes: _, ...flags } = command.opts<FilterOptions & { yes?: boolean }>();
  const hasFilter = Object.keys(filterOf(flags)).length > 0;
  if (command.args.length > 0 !== hasFilter) return;
  throw new HoldfastError(
    "USAGE",
    hasFilter ? "Both ids and a filter were given." : "Neither an id nor a filter was given.",
    "Give the ids of jobs, or flags that say which, e.g. --state failed --queue mail.",
  );
}
