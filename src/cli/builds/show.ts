import type { Command } from "commander";
import { clock, instant } from "../../core/age.ts";
import type { Build } from "../../core/build-view.ts";
import { Operator } from "../../runtime/operator.ts";
import { isLeft } from "../../runtime/status/open-builds.ts";
import type { AuditEntry } from "../../store/audit.ts";
import { noSuchBuild } from "../../store/build-row.ts";
import type { BuildRow, LeadView } from "../../store/builds.ts";
import { sayHow, sayPaused } from "../commands/run-budget.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { buildSummary } from "../render/progress.ts";
import { type Column, paint, table } from "../render/table.ts";
import { examples } from "../verb.ts";

/** More acts than this are nobody's at a glance. */
const ACTS = 100;

export function showCommand(parent: Command): void {
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
        operator.auditEntries({ after: 0, limit: ACTS, subject: id }),
      ]);
      if (build === null || row === null) throw noSuchBuild(id);
      const led = await operator.orchestratorLockOf(id, row.pipeline);
      const isDead = (await operator.openBuilds()).some((open) => open.id === id && isLeft(open));
      const now = operator.now();
      answer(command, { ...build, ...(isDead ? { orchestrator: "dead" } : {}), lead: led, history }, () =>
        page(build, row, { lead: led, isDead }, history, now),
      );
    });
}

function page(
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
  if (history.length > 0) parts.push(table(COLUMNS, history));
  return parts.join("\n");
}

const COLUMNS: Column<AuditEntry>[] = [
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
