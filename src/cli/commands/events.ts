import { definedOnly } from "../../core/text/options.ts";
import type { Command } from "commander";
import { ageText, clockText } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { Event } from "../../core/jobs/event.ts";
import { numberText } from "../../core/text/text.ts";
import type { Operator } from "../../operator/operator.ts";
import type { SinkView } from "../../store/events.ts";
import { atLeast } from "../arguments.ts";
import { isJson, writeLines } from "../render/output.ts";
import { type Column, oneLine, paint, type Style, tableOr } from "../render/table.ts";
import { untilInterrupted } from "../signals.ts";
import { addCommand, onDatabase } from "../verb.ts";

interface EventsOptions {
  limit: number;
  type?: string[];
  job?: string;
  build?: string;
  follow?: boolean;
}

export function eventsCommand(parent: Command): void {
  const events = addCommand(parent, "events", {
    description: "Show the last events, the newest at the end. With --json one line of JSON for each.",
    examples: [
      "holdfast events --type job.failed",
      "holdfast events --follow --type 'job.*' --json",
      "holdfast events --build b1k7i1ug7v00000001",
    ],
  })
    .option("--limit <number>", "at most this many", atLeast(1), 20)
    .option("--type <type...>", "only these types: job.failed, or all that begin so, 'job.*'")
    .option("--job <id>", "only those of this job")
    .option("--build <id>", "only those of this build")
    .option("--follow", "then print new events until Ctrl-C, which exits 0")
    .action(
      onDatabase(async ({ operator, command }, options: EventsOptions) => {
        const { limit, type: types, job, build, follow = false } = options;
        // Read this number before the list, so that no event is missed between the list and the subscription.
        const newest = await operator.newestEvent();
        const listed = await operator.events({ after: 0, limit, last: true, ...definedOnly({ types, job, build }) });
        const past = listed.filter(({ seq }) => !follow || seq <= newest);
        const format = isJson(command) ? (event: Event) => JSON.stringify(event) : lineOf;
        writeLines(isJson(command) || follow ? past.map(format) : [tableOr("No events.", COLUMNS, past)]);
        if (follow) await followEvents(operator, options, newest, format);
      }),
    );
  addSinks(events);
  addForget(events);
}

async function followEvents(
  operator: Operator,
  { type: types, job, build }: EventsOptions,
  from: number,
  format: (event: Event) => string,
): Promise<void> {
  const write = (event: Event) => {
    const isWanted = (job === undefined || event.job === job) && (build === undefined || event.build === build);
    if (isWanted) writeLines([format(event)]);
  };
  const subscription = operator.followEvents(write, definedOnly({ types }), from);
  using over = untilInterrupted();
  await new Promise<void>((resolve) => {
    if (over.aborted) return resolve();
    over.addEventListener("abort", () => resolve());
    // The reader of `holdfast events --follow | head` closes the pipe.
    process.stdout.once("error", () => resolve());
  });
  await subscription.end();
}

function addSinks(events: Command): void {
  addCommand(events, "sinks", {
    summary: "sinks and subscribers, and how far behind each is",
    description: "Show every sink and durable subscriber: how far behind it is, whether it fails, and why.",
    examples: ["holdfast events sinks"],
  }).action(
    onDatabase(async ({ operator }) => {
      const sinks = await operator.sinks();
      return [{ sinks }, () => tableOr("No sinks or subscribers.", sinkColumns(operator.now()), sinks)];
    }),
  );
}

function addForget(events: Command): void {
  addCommand(events, "forget", {
    summary: "forget a sink or subscriber that will not come back",
    description:
      "Forget a sink or durable subscriber, and the events it has not received; until then they are kept. One that is " +
      "still in use starts again from now.",
    examples: ["holdfast events forget old-audit"],
  })
    .argument("<name>", "its name, as in `holdfast events sinks`")
    .action(
      onDatabase(async ({ operator }, name: string, _options: object) => {
        const sinks = await operator.sinks();
        const sink = sinks.find((one) => one.name === name);
        if (sink === undefined || !(await operator.forgetSink(name))) throw noSuchSink(name, sinks);
        const { behind } = sink;
        return [{ name, behind }, () => `Forgot ${oneLine(name)}; it was ${behind} behind.`];
      }),
    );
}

function noSuchSink(name: string, sinks: readonly SinkView[]): HoldfastError {
  const names = sinks.map((sink) => sink.name).join(", ");
  const hint = names === "" ? "There are no sinks and subscribers." : `Sinks and subscribers: ${names}.`;
  return new HoldfastError("NO_SUCH_SINK", `There is no sink or subscriber ${name}.`, hint);
}

const COLUMNS: Column<Event>[] = [
  { title: "SEQ", right: true, value: ({ seq }) => String(seq) },
  { title: "AT", value: ({ at }) => clockText(at), style: () => "dim" },
  { title: "TYPE", value: ({ type }) => type, style: styleOf },
  { title: "JOB OR BUILD", value: ({ job, build }) => job ?? build ?? "", least: 17 },
  { title: "DATA", value: ({ data }) => JSON.stringify(data), least: 12, style: () => "dim" },
];

/** Returns an event as one line with fixed columns: the width of later events is not known while following. */
function lineOf(event: Event): string {
  const [seq = "", at = "", type = "", job = "", data = ""] = COLUMNS.map(({ value }) => oneLine(value(event)));
  const about = [job, paint("dim", data)].filter((text) => text !== "").join("  ");
  return `${seq.padStart(6)}  ${paint("dim", at)}  ${paint(styleOf(event), type.padEnd(15))}  ${about}`;
}

function styleOf({ type }: Event): Style | null {
  if (type.endsWith(".quarantined")) return "red";
  if (/\.(failed|returned|crashed|paused|broken)$/.test(type)) return "yellow";
  return type.endsWith(".succeeded") ? "green" : null;
}

function sinkColumns(now: number): Column<SinkView>[] {
  const ago = (at: number | null) => (at === null ? "" : ageText(now - at));
  return [
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "KIND", value: ({ kind }) => kind },
    { title: "BEHIND", right: true, value: ({ behind }) => numberText(behind) },
    { title: "OLDEST", right: true, value: ({ oldestAt }) => ago(oldestAt) },
    { title: "DELIVERED", right: true, value: ({ deliveredAt }) => (deliveredAt === null ? "never" : `${ago(deliveredAt)} ago`) },
    {
      title: "FAILED",
      right: true,
      value: ({ failures }) => (failures === 0 ? "" : `${numberText(failures)}×`),
      style: () => "yellow",
    },
    { title: "ERROR", value: ({ error, failedAt }) => (error === null ? "" : `${error} (${ago(failedAt)} ago)`), least: 12 },
  ];
}
