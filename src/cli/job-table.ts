import { age, ahead } from "../core/age.ts";
import type { Job } from "../core/job.ts";
import type { Page } from "../runtime/jobs.ts";
import { type Column, paint, stateStyle, table } from "./render/table.ts";

/** A page of jobs, for people. */
export function jobTable(page: Page<Job>, now: number): string {
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
