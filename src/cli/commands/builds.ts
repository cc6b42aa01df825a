import { type Command, Option } from "commander";
import { age, clock, instant } from "../../core/age.ts";
import type { Build } from "../../core/build-view.ts";
import { BUILD_STATES, type BuildState } from "../../core/build.ts";
import { type Cost, sayCost, saySpent } from "../../core/cost.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Why } from "../../core/why.ts";
import { number } from "../../core/words.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import type { Page } from "../../runtime/jobs.ts";
import { Operator } from "../../runtime/operator.ts";
import { isLeft, type OpenBuild } from "../../runtime/status/open-builds.ts";
import type { AuditEntry } from "../../store/audit.ts";
import { noSuchBuild } from "../../store/build-row.ts";
import type { BuildRow, LeadView } from "../../store/builds.ts";
import { atLeastOne, environmentToken, parseCost, readToken, TOKEN_SOURCES } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { buildSummary } from "../render/progress.ts";
import { buildStateText, buildStyle, type Column, count, oneLine, paint, table, terminalWidth } from "../render/table.ts";
import { examples } from "../verb.ts";
import { sayHow, sayPaused } from "./run-budget.ts";
import { resumeCommand } from "./run.ts";

export function buildsCommand(parent: Command): void {
  const builds = parent
    .command("builds")
    .summary("look at builds, go on with them or end them")
    .description("Look at builds of pipelines, go on with them, approve budgets, end them, and take out what they have made.")
    .addHelpText("after", examples("holdfast builds", "holdfast builds show b1k7i1ug7v00000001"));
  for (const add of [addList, addShow, resumeCommand, addApprove, addToken, addRefuse, addAbandon, addWhy, addExport]) {
    add(builds);
  }
}

interface ListOptions {
  pipeline?: string;
  state?: BuildState;
  limit: number;
  after?: string;
}

function addList(parent: Command): void {
  parent
    .command("list", { isDefault: true })
    .summary("list builds in the order they were made (default)")
    .description("List builds in the order they were made.")
    .option("--pipeline <name>", "only builds of this pipeline")
    .addOption(new Option("--state <state>", "only builds in this state").choices(BUILD_STATES))
    .option("--limit <number>", "at most this many", atLeastOne, 50)
    .option("--after <cursor>", "go on after the page that named this cursor")
    .addHelpText("after", examples("holdfast builds list", "holdfast builds list --pipeline docs --state BUDGET_PAUSE --json"))
    .action(async (options: ListOptions, command: Command) => {
      await using hf = await openExisting(command);
      const page = withDeadOrchestrators(await hf.builds.list(options), await new Operator(hf).openBuilds());
      answer(command, page, () => buildTable(page, new Operator(hf).now()));
    });
}

function withDeadOrchestrators(page: Page<Build>, open: readonly OpenBuild[]): Page<ListedBuild> {
  const dead = new Set(open.filter(isLeft).map(({ id }) => id));
  return { ...page, items: page.items.map((build) => (dead.has(build.id) ? { ...build, orchestrator: "dead" } : build)) };
}

/** A build of the list; of an ACTIVE one that no process drives any more, that its orchestrator is dead. */
type ListedBuild = Build & { orchestrator?: "dead" };

export function buildTable({ items, next }: Page<ListedBuild>, now: number, room = terminalWidth()): string {
  if (items.length === 0) return paint("dim", "No builds.");
  const more = next === undefined ? "" : `\n${paint("dim", `more: --after ${next}`)}`;
  const dead = items.filter(({ orchestrator }) => orchestrator === "dead").map(({ id }) => `\n${sayDead(id)}`);
  return table(buildColumns(now), items, room) + dead.join("") + more;
}

function sayDead(id: string): string {
  return paint("red", `${id} is ACTIVE, but its orchestrator is dead: holdfast builds resume ${id}`);
}

function buildColumns(now: number): Column<Build>[] {
  return [
    { title: "ID", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 6 },
    { title: "STATE", value: buildStateText, style: ({ state }) => buildStyle(state) },
    count("DONE", (build) => totalOf(build, ({ ran }) => ran)),
    { ...count<Build>("CACHED", (build) => totalOf(build, ({ cached }) => cached)), optional: true },
    count("FAILED", (build) => totalOf(build, ({ failed }) => failed), "yellow"),
    count("LEFT", (build) => totalOf(build, ({ left }) => left)),
    { title: "SPENT", value: ({ spent, budget }) => saySpent(spent, budget), least: 8 },
    { title: "AGE", right: true, value: ({ createdAt }) => age(now - createdAt) },
    { title: "REASON", value: ({ reason }) => reason, least: 10, style: () => "dim", optional: true },
  ];
}

function totalOf({ stages }: Build, of: (stage: Build["stages"][string]) => number): number {
  return Object.values(stages).reduce((sum, stage) => sum + of(stage), 0);
}

/** More acts than this are nobody's at a glance. */
const HISTORY_LIMIT = 100;

function addShow(parent: Command): void {
  parent
    .command("show")
    .summary("everything about one build")
    .description("Show everything about one build: its stages, what went wrong, who leads it, and what was done to it.")
    .argument("<id>", "the build's id")
    .addHelpText("after", examples("holdfast builds show b1k7i1ug7v00000001"))
    .action(async (id: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const [build, row, history] = await Promise.all([
        hf.builds.get(id),
        operator.build(id),
        operator.auditEntries({ after: 0, limit: HISTORY_LIMIT, subject: id }),
      ]);
      if (build === null || row === null) throw noSuchBuild(id);
      const led = await operator.orchestratorLockOf(id, row.pipeline);
      const isDead = (await operator.openBuilds()).some((open) => open.id === id && isLeft(open));
      const now = operator.now();
      answer(command, { ...build, ...(isDead ? { orchestrator: "dead" } : {}), lead: led, history }, () =>
        buildPage(build, row, { lead: led, isDead }, history, now),
      );
    });
}

function buildPage(
  build: Build,
  row: BuildRow,
  by: { lead: LeadView | null; isDead: boolean },
  history: AuditEntry[],
  now: number,
): string {
  const { lead, isDead } = by;
  const parts = [buildSummary(build, now), `${paint("dim", "created")} ${instant(build.createdAt, now)}`];
  if (lead !== null)
    parts.push(
      `${paint("dim", "led by")}  pid ${lead.pid} on ${lead.host} (${lead.program})${isDead ? ": the orchestrator is dead" : ""}`,
    );
  if (row.state === "BUDGET_PAUSE") {
    parts.push(sayPaused(row, build));
    parts.push(
      row.approved ? "It is approved: the next run goes on." : sayHow(row, `holdfast builds resume ${row.id}`, undefined),
    );
  }
  if (history.length > 0) parts.push(table(HISTORY_COLUMNS, history));
  return parts.join("\n");
}

const HISTORY_COLUMNS: Column<AuditEntry>[] = [
  { title: "AT", value: ({ at }) => clock(at), style: () => "dim" },
  { title: "ACTION", value: ({ action }) => action },
  { title: "BY", value: ({ by }) => by, least: 16 },
  { title: "REASON", value: ({ after }) => reasonOf(after), least: 8 },
];

function reasonOf(after: unknown): string {
  const { reason, note } = (typeof after === "object" && after !== null ? after : {}) as {
    reason?: string;
    note?: string | null;
  };
  return note ?? reason ?? "";
}

function addApprove(parent: Command): void {
  parent
    .command("approve")
    .summary("give a paused build a new budget; the next run goes on")
    .description(
      "Give a build that is paused for its budget a new one, without running anything. The next `run` goes on with it.",
    )
    .argument("<id>", "the build's id")
    .option("--token <token>", `its confirmation token; ${TOKEN_SOURCES}; \`holdfast builds token\` makes another`)
    .requiredOption("--budget <usd>", "how much it may spend in all: 10, or usd=10,tokens=100000", parseCost)
    .addHelpText("after", examples("holdfast builds approve b1k7i1ug7v00000001 --token hft_… --budget 10"))
    .action(async (id: string, { token: given, budget }: { token?: string; budget: Cost }, command: Command) => {
      const token = (await readToken(given)) ?? environmentToken();
      if (token === undefined) throw noToken(id);
      await using hf = await openExisting(command);
      const build = await hf.builds.approve(id, { token, budget });
      answer(
        command,
        build,
        () =>
          `Approved: build ${id} of "${oneLine(build.pipeline)}" may spend ${sayCost(build.budget)}. The next run goes on with it.`,
      );
    });
}

function noToken(id: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    "No confirmation token was given.",
    `Give --token, with - to read standard input, or set HOLDFAST_TOKEN. holdfast builds token ${id} makes one.`,
  );
}

function addToken(parent: Command): void {
  parent
    .command("token")
    .summary("make another confirmation token for a paused build")
    .description(
      "Make another confirmation token for a build that is paused for its budget, and print it. It can be used once, within an " +
        "hour; those before it do not count any more. That it was made is in the audit, the token itself is kept nowhere.",
    )
    .argument("<id>", "the build's id")
    .addHelpText("after", examples("holdfast builds token b1k7i1ug7v00000001"))
    .action(async (id: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const token = await hf.builds.mintToken(id);
      answer(command, { build: id, token }, () => token);
    });
}

function addAbandon(parent: Command): void {
  addEnd(parent, {
    name: "abandon",
    summary: "abandon a build",
    description: "Abandon a build. Its orchestrator stops, if it has one. The next build reuses its results.",
    example: 'holdfast builds abandon b1k7i1ug7v00000001 --reason "wrong prompt"',
    done: "Abandoned",
    end: (hf, id, reason) => hf.builds.abandon(id, reason),
  });
}

function addRefuse(parent: Command): void {
  addEnd(parent, {
    name: "refuse",
    summary: "refuse a paused build a larger budget",
    description:
      "Refuse a build that is paused for its budget any more money. It ends FAILED, for the reason budget_refused, and its " +
      "token is no longer valid. The next build reuses its results.",
    example: 'holdfast builds refuse b1k7i1ug7v00000001 --reason "too expensive"',
    done: "Refused",
    end: (hf, id, reason) => hf.builds.refuse(id, reason),
  });
}

interface EndCommand {
  name: string;
  summary: string;
  description: string;
  example: string;
  done: string;
  end: (hf: Holdfast, id: string, reason: string) => Promise<Build>;
}

function addEnd(parent: Command, { name, summary, description, example, done, end }: EndCommand): void {
  parent
    .command(name)
    .summary(summary)
    .description(description)
    .argument("<id>", "the build's id")
    .requiredOption("--reason <text>", "why; it is stored with the build and in the audit")
    .addHelpText("after", examples(example))
    .action(async (id: string, { reason }: { reason: string }, command: Command) => {
      await using hf = await openExisting(command);
      const build = await end(hf, id, reason);
      answer(command, build, () => `${done} build ${id} of "${oneLine(build.pipeline)}".`);
    });
}

function addWhy(parent: Command): void {
  parent
    .command("why")
    .summary("why a stage ran for a target, or was reused")
    .description(
      "Show why a build ran a stage for a target, or reused its result: which of version, key, input and target changed.",
    )
    .argument("<id>", "the build's id")
    .argument("<stage>", "the stage's name")
    .argument("<target>", "the target's id")
    .addHelpText("after", examples("holdfast builds why b1k7i1ug7v00000001 parse docs/intro.md"))
    .action(async (id: string, stage: string, target: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const why = await hf.builds.why(id, stage, target);
      answer(command, why, () => whyPage(why));
    });
}

function whyPage({ ran, reason, parts }: Why): string {
  const said = reason.replace(/^\w+/, (word) => paint(ran ? "cyan" : "green", word));
  if (parts.length === 0) return said;
  const changes = table(
    [
      { title: "PART", value: ({ part }) => part },
      { title: "BEFORE", value: ({ before }) => valueText(before), least: 12, style: () => "dim" },
      { title: "AFTER", value: ({ after }) => valueText(after), least: 12 },
    ],
    parts.slice(0, WHY_LIMIT),
  );
  const more =
    parts.length > WHY_LIMIT ? `\n${paint("dim", `and ${number(parts.length - WHY_LIMIT)} more; --json has them all.`)}` : "";
  return `${said}\n${changes}${more}`;
}

/** A gather may have thousands of members. */
const WHY_LIMIT = 100;

function valueText(value: unknown): string {
  return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}

function addExport(parent: Command): void {
  parent
    .command("export")
    .summary("write what a build has made into a folder")
    .description(
      "Write what a build has made into a folder, whole or not at all, with manifest.json and checksums.txt, and print its path.",
    )
    .argument("<id>", "the build's id")
    .argument("<dir>", "the folder; there must be none yet")
    .option("--stage <stage>", "only this stage; may be repeated", (text: string, all: string[] = []) => [...all, text])
    .addHelpText(
      "after",
      examples(
        "holdfast builds export b1k7i1ug7v00000001 out/first",
        "holdfast builds export b1k7i1ug7v00000001 out/index --stage index",
      ),
    )
    .action(async (id: string, dir: string, { stage: stages }: { stage?: string[] }, command: Command) => {
      await using hf = await openExisting(command);
      const path = await hf.builds.export(id, dir, stages === undefined ? {} : { stages });
      answer(command, { build: id, path }, () => path);
    });
}
