import type { Command } from "commander";
import { age, ahead } from "../../core/age.ts";
import type { Schedule } from "../../core/schedule.ts";
import type { Holdfast } from "../../runtime/holdfast.ts";
import { Operator } from "../../runtime/operator.ts";
import { noSuchSchedule } from "../../runtime/schedules.ts";
import { openExisting } from "../database.ts";
import { answer } from "../render/output.ts";
import { type Column, oneLine, paint, table } from "../render/table.ts";
import { examples } from "../verb.ts";

/** What an operator does to a schedule, and how the answer says it. */
const ACTIONS = {
  pause: { does: "stop its ticks until it is resumed", done: "Paused" },
  resume: { does: "let it tick again, from the next tick on", done: "Resumed" },
  remove: { does: "remove it; its jobs stay", done: "Removed" },
} as const;

export function schedulesCommand(parent: Command): void {
  const schedules = parent
    .command("schedules")
    .summary("what is enqueued when: list, pause, resume, trigger, remove")
    .description("What is enqueued when: list the schedules; pause, resume, trigger or remove one of them.")
    .addHelpText("after", examples("holdfast schedules", "holdfast schedules pause nightly-report"));
  schedules
    .command("list", { isDefault: true })
    .summary("list the schedules (default)")
    .description("List the schedules, each with its next tick in its own time zone.")
    .addHelpText("after", examples("holdfast schedules list"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const items = await hf.schedules.list({ incomplete: true });
      const operator = new Operator(hf);
      answer(command, { items, ...operator.incomplete() }, () => scheduleTable(items, operator.now()));
    });
  for (const [name, { does, done }] of Object.entries(ACTIONS)) {
    schedules
      .command(name)
      .summary(does)
      .description(`${does[0]?.toUpperCase()}${does.slice(1)}.`)
      .argument("<key>", "the schedule's key, as in `holdfast schedules`")
      .addHelpText("after", examples(`holdfast schedules ${name} nightly-report`))
      .action(async (key: string, _options: object, command: Command) => {
        await using hf = await openExisting(command);
        await act(hf, name as keyof typeof ACTIONS, key);
        answer(command, { key, [done.toLowerCase()]: true }, () => `${done} ${oneLine(key)}.`);
      });
  }
  schedules
    .command("trigger")
    .summary("make a job of it now; its ticks stay as they are")
    .description("Make a job of it now; its ticks stay as they are.")
    .argument("<key>", "the schedule's key, as in `holdfast schedules`")
    .addHelpText("after", examples("holdfast schedules trigger nightly-report"))
    .action(async (key: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const { id, duplicate } = await hf.schedules.trigger(key);
      answer(command, { key, id, duplicate }, () =>
        duplicate ? `Job ${id} of ${oneLine(key)} is not finished yet.` : `Enqueued job ${id}.`,
      );
    });
}

async function act(hf: Holdfast, name: keyof typeof ACTIONS, key: string): Promise<void> {
  if (name !== "remove") return hf.schedules[name](key);
  // A typing mistake must not look like a success.
  if (!(await hf.schedules.remove(key))) throw noSuchSchedule(key, await hf.schedules.list());
}

/** The schedules, for people. */
export function scheduleTable(schedules: readonly Schedule[], now: number): string {
  if (schedules.length === 0) return paint("dim", "No schedules.");
  const columns: Column<Schedule>[] = [
    { title: "KEY", value: ({ key }) => key, least: 8 },
    { title: "CRON", value: ({ cron }) => cron, least: 11 },
    { title: "ZONE", value: ({ timezone }) => timezone, least: 8 },
    { title: "LAST", right: true, value: ({ lastAt }) => (lastAt === undefined ? "never" : `${age(now - lastAt)} ago`) },
    { title: "NEXT", value: (schedule) => nextTick(schedule, now), style: ({ paused }) => (paused ? "yellow" : null) },
  ];
  // Most schedules are called like their job.
  if (schedules.some(({ key, job }) => key !== job)) columns.splice(1, 0, { title: "JOB", value: ({ job }) => job, least: 8 });
  return table(columns, schedules);
}

/** `2026-03-29 03:00:00 (in 7h)`, as a clock in its time zone will show. */
function nextTick({ paused, nextAt, timezone }: Schedule, now: number): string {
  if (paused) return "paused";
  const when = nextAt > now ? `in ${ahead(nextAt - now)}` : `due since ${age(now - nextAt)}`;
  return `${clockTime(nextAt, timezone)} (${when})`;
}

function clockTime(at: number, timezone: string): string {
  try {
    // Swedish has the order of ISO 8601.
    return new Intl.DateTimeFormat("sv-SE", { timeZone: timezone, dateStyle: "short", timeStyle: "medium" }).format(at);
  } catch {
    return new Date(at).toISOString();
  }
}
