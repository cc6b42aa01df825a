import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { exposition, type MetricsSnapshot, familiesOf } from "../../core/recovery/metrics.ts";
import { numberText, plural } from "../../core/text/text.ts";
import { Operator } from "../../operator/operator.ts";
import { type Alarm, alarmsOf, type Overview, workersIn } from "../../operator/overview.ts";
import { openExisting, optionsOf } from "../database.ts";
import { EXIT, exitCodeOf } from "../exit.ts";
import { answer, workerLog } from "../render/output.ts";
import { oneLine, paint } from "../render/table.ts";
import { withAdvice } from "./status.ts";
import { addCommand } from "../verb.ts";

export function healthCommand(parent: Command): void {
  addCommand(parent, "health", {
    description:
      "For probes: one line, and exit code 0 when all is well, 1 when not, 2 when there is no Holdfast database, 5 when " +
      "the database is damaged. Not well: it cannot be opened or written, jobs wait without any worker, or jobs are " +
      "quarantined. --oldest also fails on old jobs, e.g. of a name that no worker runs.",
    examples: ["holdfast health", "holdfast health --oldest 10m || alert"],
  })
    .option("--oldest <duration>", "also fail when a job has waited longer than this, e.g. 10m")
    .action(async (options: { oldest?: string }, command: Command) => {
      const limits = options.oldest === undefined ? {} : { oldest: toMillis(options.oldest as Duration, "--oldest") };
      const overview = await readOverview(command);
      if (overview instanceof HoldfastError) {
        process.exitCode = exitCodeOf(overview.code);
        const { code, message, hint } = overview;
        answer(command, { ok: false, reasons: [{ code, message, hint }] }, () => healthLine(false, message));
        return;
      }
      const alarms = withAdvice(alarmsOf(overview, limits), command);
      const reasons = alarms.filter(({ grave }) => grave);
      if (reasons.length > 0) process.exitCode = EXIT.failed;
      answer(command, { ok: reasons.length === 0, reasons, counts: overview.counts }, () =>
        reasons.length === 0
          ? healthLine(true, healthSummary(overview))
          : healthLine(false, reasons.map(({ message }: Alarm) => message).join("; ")),
      );
    });
}

/** Opens the database and reads it. Opening registers this process, which also proves that the database can be written. */
async function readOverview(command: Command): Promise<Overview | HoldfastError> {
  try {
    await using hf = await openExisting(command);
    const operator = new Operator(hf);
    operator.refuseDamaged();
    const overview = await operator.overview();
    // Reading may have found damage.
    operator.refuseDamaged();
    return overview;
  } catch (error) {
    // A usage error says nothing about the database.
    if (error instanceof HoldfastError && exitCodeOf(error.code) !== EXIT.usage) return error;
    throw error;
  }
}

function healthSummary(overview: Overview): string {
  const { pending, running } = overview.counts;
  const builds = overview.builds.filter(({ state }) => state === "ACTIVE").length;
  const jobs = `${numberText(pending)} pending, ${numberText(running)} running, ${plural(workersIn(overview).length, "worker")}`;
  return builds === 0 ? jobs : `${jobs}, ${plural(builds, "build")} running`;
}

function healthLine(ok: boolean, text: string): string {
  return `${ok ? paint("green", "ok") : paint("red", "not ok")}: ${oneLine(text)}`;
}

export function metricsCommand(parent: Command): void {
  addCommand(parent, "metrics", {
    description:
      "Print the state of the database as Prometheus reads it: jobs, workers, builds, schedules, sinks, crashes, disk, " +
      "backups and alarms; for node_exporter's textfile collector. A damaged database prints what can be read, one that " +
      "cannot be opened says that it is not up; both exit 0.",
    examples: [
      "holdfast metrics",
      "holdfast metrics > jobs.prom.new && mv jobs.prom.new /var/lib/node_exporter/jobs.prom",
      "holdfast metrics --json | jq '.families[].name'",
    ],
  }).action(async (_options: object, command: Command) => {
    const families = familiesOf(await readFacts(command)).filter(({ samples }) => samples.length > 0);
    answer(command, { families }, () => exposition(families).trimEnd());
  });
}

async function readFacts(command: Command): Promise<MetricsSnapshot> {
  try {
    await using hf = await openExisting(command);
    const folder = optionsOf(command).backups?.folder;
    return await new Operator(hf).metrics(folder === undefined ? {} : { backups: { folder } });
  } catch (error) {
    if (!(error instanceof HoldfastError) || exitCodeOf(error.code) === EXIT.usage) throw error;
    workerLog("warn").warn(error.message, { code: error.code });
    return { at: Date.now(), isDamaged: error.code === "DAMAGED" };
  }
}
