import type { Command } from "commander";
import { ageText, untilText } from "../../core/text/duration.ts";
import type { Schedule } from "../../core/jobs/schedule.ts";
import type { Holdfast } from "../../holdfast.ts";
import { noSuchSchedule } from "../../engine/schedules.ts";
import { type Column, oneLine, tableOr } from "../render/table.ts";
import { addCommand, onDatabase } from "../verb.ts";

const ACTIONS = {
  pause: { does: "stop its ticks until it is resumed", done: "Paused" },
  resume: { does: "resume it from the next tick on", done: "Resumed" },
  remove: { does: "remove it; its jobs stay", done: "Removed" },
} as const;

export function schedulesCommand(parent: Command): void {
  const schedules = addCommand(parent, "schedules", {
    description: "List, pause, resume, trigger and remove schedules.",
    examples: ["holdfast schedules", "holdfast schedules pause nightly-report"],
  });
  addCommand(schedules, "list", {
    summary: "list the schedules (default)",
    description: "List the schedules, each with its next tick in its own time zone.",
    examples: ["holdfast schedules list"],
    isDefault: true,
  }).action(
    onDatabase(async ({ hf, operator }) => {
      const items = await hf.schedules.list({ incomplete: true });
      return [{ items, ...operator.incomplete() }, () => scheduleTable(items, operator.now())];
    }),
  );
  for (const [name, { does, done }] of Object.entries(ACTIONS)) {
    addCommand(schedules, name, { summary: does, examples: [`holdfast schedules ${name} nightly-report`] })
      .argument("<key>", "the schedule's key, as in `holdfast schedules`")
      .action(
        onDatabase(async ({ hf }, key: string, _options: object) => {
          await act(hf, name as keyof typeof ACTIONS, key);
          return [{ key, [done.toLowerCase()]: true }, () => `${done} ${oneLine(key)}.`];
        }),
      );
  }
  addCommand(schedules, "trigger", {
    summary: "enqueue a job of it now; its ticks stay",
    examples: ["holdfast schedules trigger nightly-report"],
  })
    .argument("<key>", "the schedule's key, as in `holdfast schedules`")
    .action(
      onDatabase(async ({ hf }, key: string, _options: object) => {
        const { id, duplicate } = await hf.schedules.trigger(key);
        const text = duplicate ? `Job ${id} of ${oneLine(key)} is not finished yet.` : `Enqueued job ${id}.`;
        return [{ key, id, duplicate }, () => text];
      }),
    );
}

async function act(hf: Holdfast, name: keyof typeof ACTIONS, key: string): Promise<void> {
  if (name !== "remove") return hf.schedules[name](key);
  if (!(await hf.schedules.remove(key))) throw noSuchSchedule(key, await hf.schedules.list());
}

export function scheduleTable(schedules: readonly Schedule[], now: number): string {
  const columns: Column<Schedule>[] = [
    { title: "KEY", value: ({ key }) => key, least: 8 },
    { title: "CRON", value: ({ cron }) => cron, least: 11 },
    { title: "ZONE", value: ({ timezone }) => timezone, least: 8 },
    { title: "LAST", right: true, value: ({ lastAt }) => (lastAt === undefined ? "never" : `${ageText(now - lastAt)} ago`) },
    { title: "NEXT", value: (schedule) => nextTick(schedule, now), style: ({ paused }) => (paused ? "yellow" : null) },
  ];
  if (schedules.some(({ key, job }) => key !== job)) columns.splice(1, 0, { title: "JOB", value: ({ job }) => job, least: 8 });
  return tableOr("No schedules.", columns, schedules);
}

function nextTick({ paused, nextAt, timezone }: Schedule, now: number): string {
  if (paused) return "paused";
  const when = nextAt > now ? `in ${untilText(nextAt - now)}` : `${ageText(now - nextAt)} overdue`;
  return `${clockTime(nextAt, timezone)} (${when})`;
}

function clockTime(at: number, timezone: string): string {
  try {
    // The Swedish format has the order of ISO 8601.
    return new Intl.DateTimeFormat("sv-SE", { timeZone: timezone, dateStyle: "short", timeStyle: "medium" }).format(at);
  } catch {
    return new Date(at).toISOString();
  }
}
