import { type Command, Option } from "commander";
import { ageText, clockText, instantText } from "../../core/text/duration.ts";
import type { Build, Why } from "../../core/pipelines/build-view.ts";
import { buildReasonText, BUILD_STATES, currentReasonText } from "../../core/pipelines/build.ts";
import { type Cost, costText, spentText } from "../../core/pipelines/budget.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { numberText } from "../../core/text/text.ts";
import type { Holdfast } from "../../holdfast.ts";
import type { Page } from "../../engine/client.ts";
import { isOrphaned } from "../../operator/overview.ts";
import type { AuditEntry } from "../../store/audit.ts";
import type { BuildRow, OrchestratorLockRow } from "../../store/builds.ts";
import { environmentToken, parseCost, readToken, TOKEN_SOURCES } from "../arguments.ts";
import { openExisting, sameDatabase } from "../database.ts";
import { answer } from "../render/output.ts";
import { buildSummary } from "../render/progress.ts";
import { buildStateText, BUILD_STYLES, type Column, count, oneLine, paint, table, terminalWidth } from "../render/table.ts";
import { addCommand, addPageOptions, onDatabase } from "../verb.ts";
import { nextCommandsText, pausedText } from "./run-budget.ts";
import { resumeCommand } from "./run.ts";
import { adviceOf } from "./status.ts";

export function buildsCommand(parent: Command): void {
  const builds = addCommand(parent, "builds", {
    description: "List, show, resume, approve, abandon and export builds of pipelines.",
    examples: ["holdfast builds", "holdfast builds show b1k7i1ug7v00000001"],
  });
  addList(builds);
  addShow(builds);
  resumeCommand(builds);
  addApprove(builds);
  addToken(builds);
  addEnd(builds, {
    name: "refuse",
    summary: "end a paused build instead of raising its budget",
    description:
      "End a paused build instead of raising its budget. The build ends FAILED, and its " +
      "token is no longer valid. The next build reuses its results.",
    reason: "too expensive",
    done: "Refused",
    end: (hf, id, reason) => hf.builds.refuse(id, reason),
  });
  addEnd(builds, {
    name: "abandon",
    summary: "abandon a build",
    description: "Abandon a build. Its orchestrator stops, if it has one. The next build reuses its results.",
    reason: "wrong prompt",
    done: "Abandoned",
    end: (hf, id, reason) => hf.builds.abandon(id, reason),
  });
  addWhy(builds);
  addExport(builds);
}

function addList(builds: Command): void {
  const list = addCommand(builds, "list", {
    summary: "list builds in the order they were started (default)",
    description: "List builds in the order they were started.",
    examples: ["holdfast builds list", "holdfast builds list --pipeline docs --state BUDGET_PAUSE --json"],
    isDefault: true,
  })
    .option("--pipeline <name>", "only builds of this pipeline")
    .addOption(new Option("--state <state>", "only builds in this state").choices(BUILD_STATES));
  addPageOptions(list).action(
    onDatabase(async ({ hf, operator, command }, options: Parameters<Holdfast["builds"]["list"]>[0]) => {
      const page: Page<ListedBuild> = await hf.builds.list(options);
      const dead = new Set((await operator.openBuilds()).filter(isOrphaned).map(({ id }) => id));
      for (const build of page.items) if (dead.has(build.id)) build.orchestrator = "dead";
      return [page, () => buildTable(page, operator.now(), (id) => adviceOf(`holdfast builds resume ${id}`, command))];
    }),
  );
}

type ListedBuild = Build & { orchestrator?: "dead" };

export function buildTable(
  { items, next }: Page<ListedBuild>,
  now: number,
  resumeOf: (id: string) => string,
  room = terminalWidth(),
): string {
  if (items.length === 0) return paint("dim", "No builds.");
  const more = next === undefined ? "" : `\n${paint("dim", `more: --after ${next}`)}`;
  const dead = items
    .filter(({ orchestrator }) => orchestrator === "dead")
    .map(({ id }) => `\n${paint("red", `${id} is ACTIVE, but its orchestrator is dead: ${resumeOf(id)}`)}`);
  return table(buildColumns(now), items, room) + dead.join("") + more;
}

function buildColumns(now: number): Column<Build>[] {
  return [
    { title: "ID", value: ({ id }) => id },
    { title: "PIPELINE", value: ({ pipeline }) => pipeline, least: 6 },
    { title: "STATE", value: buildStateText, style: ({ state }) => BUILD_STYLES[state] },
    count("DONE", (build) => totalOf(build, "ran")),
    { ...count<Build>("CACHED", (build) => totalOf(build, "cached")), optional: true },
    count("FAILED", (build) => totalOf(build, "failed"), "yellow"),
    count("LEFT", (build) => totalOf(build, "left")),
    { title: "SPENT", value: ({ spent, budget }) => spentText(spent, budget), least: 8 },
    { title: "AGE", right: true, value: ({ createdAt }) => ageText(now - createdAt) },
    { title: "REASON", value: currentReasonText, least: 10, style: () => "dim", optional: true },
  ];
}

function totalOf({ stages }: Build, count: "ran" | "cached" | "failed" | "left"): number {
  return Object.values(stages).reduce((sum, stage) => sum + stage[count], 0);
}

const HISTORY_LIMIT = 100;

function addShow(builds: Command): void {
  addCommand(builds, "show", {
    summary: "show one build",
    description: "Show one build: stages, errors, orchestrator and history.",
    examples: ["holdfast builds show b1k7i1ug7v00000001"],
  })
    .argument("<id>", "the build's id")
    .action(
      onDatabase(async ({ hf, operator, command }, id: string, _options: object) => {
        const build = (await hf.builds.get(id)) as Build;
        const row = await operator.build(id);
        const history = await operator.auditEntries({ after: 0, limit: HISTORY_LIMIT, subject: id });
        const lead = await operator.orchestratorLockOf(id, row.pipeline);
        const isDead = (await operator.openBuilds()).some((open) => open.id === id && isOrphaned(open));
        return [
          { ...build, ...(isDead ? { orchestrator: "dead" } : {}), lead, history },
          () => buildPage(build, row, { lead, isDead, command }, history, operator.now()),
        ];
      }),
    );
}

function buildPage(
  build: Build,
  row: BuildRow,
  { lead, isDead, command }: { lead: OrchestratorLockRow | null; isDead: boolean; command: Command },
  history: AuditEntry[],
  now: number,
): string {
  const parts = [buildSummary(build, now), `${paint("dim", "created")} ${instantText(build.createdAt, now)}`];
  if (lead !== null) {
    const dead = isDead ? ": the process is dead" : "";
    parts.push(`${paint("dim", "orchestrator")}  pid ${lead.pid} on ${lead.host} (${lead.program})${dead}`);
  }
  if (row.state === "BUDGET_PAUSE") {
    parts.push(pausedText(row, build));
    parts.push(
      row.approved
        ? "It is approved: the next run continues it."
        : nextCommandsText(
            row,
            { again: adviceOf(`holdfast builds resume ${row.id}`, command), same: sameDatabase(command) },
            undefined,
          ),
    );
  }
  if (history.length > 0) parts.push(table(HISTORY_COLUMNS, history));
  return parts.join("\n");
}

const HISTORY_COLUMNS: Column<AuditEntry>[] = [
  { title: "AT", value: ({ at }) => clockText(at), style: () => "dim" },
  { title: "ACTION", value: ({ action }) => action },
  { title: "BY", value: ({ by }) => by, least: 16 },
  { title: "REASON", value: ({ after }) => reasonOf(after), least: 8 },
];

function reasonOf(after: unknown): string {
  const { reason, note } = (typeof after === "object" && after !== null ? after : {}) as {
    reason?: string;
    note?: string | null;
  };
  return note ?? buildReasonText(reason ?? "");
}

function addApprove(builds: Command): void {
  addCommand(builds, "approve", {
    summary: "give a paused build a new budget; the next run continues it",
    description: "Give a paused build a new budget, without running anything. The next `run` continues it.",
    examples: ["holdfast builds approve b1k7i1ug7v00000001 --token hft_… --budget 10"],
  })
    .argument("<id>", "the build's id")
    .option("--token <token>", `its confirmation token; ${TOKEN_SOURCES}; \`holdfast builds token\` makes another`)
    .requiredOption("--budget <usd>", "how much it may spend in all: 10, or usd=10,tokens=100000", parseCost)
    .action(async (id: string, { token: given, budget }: { token?: string; budget: Cost }, command: Command) => {
      const token = (await readToken(given)) ?? environmentToken();
      if (token === undefined) throw noToken(id);
      await using hf = await openExisting(command);
      const build = await hf.builds.approve(id, { token, budget });
      const spend = `may spend ${costText(build.budget)}. The next run continues it.`;
      answer(command, build, () => `Approved: build ${id} of "${oneLine(build.pipeline)}" ${spend}`);
    });
}

function noToken(id: string): HoldfastError {
  return new HoldfastError(
    "USAGE",
    "No confirmation token was given.",
    `Give --token, with - to read standard input, or set HOLDFAST_TOKEN. holdfast builds token ${id} makes one.`,
  );
}

function addToken(builds: Command): void {
  addCommand(builds, "token", {
    summary: "create another confirmation token for a paused build",
    description:
      "Create another confirmation token for a paused build, and print it. It works once, within an hour, and replaces " +
      "earlier ones. The audit records that it was created; the token itself is not stored.",
    examples: ["holdfast builds token b1k7i1ug7v00000001"],
  })
    .argument("<id>", "the build's id")
    .action(
      onDatabase(async ({ hf }, id: string, _options: object) => {
        const token = await hf.builds.mintToken(id);
        return [{ build: id, token }, () => token];
      }),
    );
}

interface EndVerb {
  name: string;
  summary: string;
  description: string;
  reason: string;
  done: string;
  end: (hf: Holdfast, id: string, reason: string) => Promise<Build>;
}

function addEnd(builds: Command, { name, summary, description, reason: example, done, end }: EndVerb): void {
  const examples = [`holdfast builds ${name} b1k7i1ug7v00000001 --reason "${example}"`];
  addCommand(builds, name, { summary, description, examples })
    .argument("<id>", "the build's id")
    .requiredOption("--reason <text>", "why; it is stored with the build and in the audit")
    .action(
      onDatabase(async ({ hf }, id: string, { reason }: { reason: string }) => {
        const build = await end(hf, id, reason);
        return [build, () => `${done} build ${id} of "${oneLine(build.pipeline)}".`];
      }),
    );
}

function addWhy(builds: Command): void {
  addCommand(builds, "why", {
    summary: "why a stage ran for a target, or was reused",
    description:
      "Show why a build ran a stage for a target, or reused its result: which of version, key, input and target changed.",
    examples: ["holdfast builds why b1k7i1ug7v00000001 parse docs/intro.md"],
  })
    .argument("<id>", "the build's id")
    .argument("<stage>", "the stage's name")
    .argument("<target>", "the target's id")
    .action(
      onDatabase(async ({ hf }, id: string, stage: string, target: string, _options: object) => {
        const why = await hf.builds.why(id, stage, target);
        return [why, () => whyPage(why)];
      }),
    );
}

const WHY_LIMIT = 100;

function whyPage({ ran, reason, parts }: Why): string {
  const verdict = reason.replace(/^\w+/, (word) => paint(ran ? "cyan" : "green", word));
  if (parts.length === 0) return verdict;
  const changes = table(
    [
      { title: "PART", value: ({ part }) => part },
      { title: "BEFORE", value: ({ before }) => valueText(before), least: 12, style: () => "dim" },
      { title: "AFTER", value: ({ after }) => valueText(after), least: 12 },
    ],
    parts.slice(0, WHY_LIMIT),
  );
  const hidden = parts.length - WHY_LIMIT;
  const more = hidden > 0 ? `\n${paint("dim", `and ${numberText(hidden)} more; --json has them all.`)}` : "";
  return `${verdict}\n${changes}${more}`;
}

function valueText(value: unknown): string {
  return value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
}

function addExport(builds: Command): void {
  addCommand(builds, "export", {
    summary: "write the outputs of a build into a folder",
    description:
      "Write the outputs of a build into a new folder, whole or not at all, with manifest.json and checksums.txt, and " +
      "print its path.",
    examples: [
      "holdfast builds export b1k7i1ug7v00000001 out/first",
      "holdfast builds export b1k7i1ug7v00000001 out/index --stage index",
    ],
  })
    .argument("<id>", "the build's id")
    .argument("<dir>", "the folder; there must be none yet")
    .option("--stage <stage>", "only this stage; may be repeated", (text: string, all: string[] = []) => [...all, text])
    .action(
      onDatabase(async ({ hf }, id: string, dir: string, { stage: stages }: { stage?: string[] }) => {
        const path = await hf.builds.export(id, dir, stages === undefined ? {} : { stages });
        return [{ build: id, path }, () => path];
      }),
    );
}
