import type { Command } from "commander";
import { instant } from "../../core/age.ts";
import type { Job } from "../../core/job.ts";
import { Operator } from "../../runtime/operator.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { oneLine, paint, printable, stateStyle } from "../render/table.ts";
import { examples, noSuchJob } from "../verb.ts";

export function showCommand(parent: Command): void {
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
      answer(command, job, () => page(job, new Operator(hf).now()));
    });
}

function page(job: Job, now: number): string {
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
    ["progress", sayProgress(job)],
  ];
  const lines = facts.flatMap(([label, value]) => {
    if (value === undefined) return [];
    return `${paint("dim", label.padEnd(10))}${label === "state" ? value : oneLine(value)}`;
  });
  lines.push(block("input", job.input === undefined ? undefined : JSON.stringify(job.input, null, 2)));
  lines.push(block("output", job.output === undefined ? undefined : JSON.stringify(job.output, null, 2)));
  lines.push(block("error", sayError(job)));
  return lines.filter((line) => line !== "").join("\n");
}

function sayProgress({ progress }: Job): string | undefined {
  if (progress === undefined) return undefined;
  return `${Math.floor(progress.fraction * 100)}%${progress.message === undefined ? "" : ` ${progress.message}`}`;
}

/** The stack begins with the name and the message. */
function sayError({ error }: Job): string | undefined {
  if (error === undefined) return undefined;
  const code = error.code === undefined ? "" : ` [${error.code}]`;
  return error.stack === undefined ? `${error.name}: ${error.message}${code}` : error.stack + code;
}

function block(label: string, text: string | undefined): string {
  if (text === undefined) return "";
  const indented = printable(text).replaceAll("\n", `\n${" ".repeat(10)}`);
  return `${paint("dim", label.padEnd(10))}${label === "error" ? paint("yellow", indented) : indented}`;
}
