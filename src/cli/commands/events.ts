import type { Command } from "commander";
import { age, clock } from "../../core/age.ts";
import { HoldfastError } from "../../core/errors.ts";
import type { Event } from "../../core/event.ts";
import { number } from "../../core/words.ts";
import { Operator } from "../../runtime/operator.ts";
import type { SinkView } from "../../store/sinks.ts";
import { atLeastOne } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { answer, isJson } from "../render/output.ts";
import { type Column, oneLine, paint, type Style, table } from "../render/table.ts";
import { untilInterrupted } from "../signals.ts";
import { examples } from "../verb.ts";

export function eventsCommand(parent: Command): void {
  const events = listEvents(parent.command("events"));
  for (const add of [addSinks, addForget]) add(events);
}

interface Options {
  limit: number;
  type?: string[];
  job?: string;
  build?: string;
  follow?: boolean;
}

function listEvents(events: Command): Command {
  return events
    .summary("what happened, and who has been told")
    .description("Show the last events, the newest at the end. With --json one line of JSON for each.")
    .option("--limit <number>", "at most this many", atLeastOne, 20)
    .option("--type <type...>", "only these types: job.failed, or all that begin so, 'job.*'")
    .option("--job <id>", "only those of this job")
    .option("--build <id>", "only those of this build")
    .option("--follow", "then go on with what happens, until Ctrl-C, which exits 0")
    .addHelpText(
      "after",
      examples(
        "holdfast events --type job.failed",
        "holdfast events --follow --type 'job.*' --json",
        "holdfast events --build b1k7i1ug7v00000001",
      ),
    )
    .action(async (options: Options, command: Command) => {
      await using hf = await openExisting(command);
      const { limit, type: types, job, build } = options;
      const about = { ...(job !== undefined && { job }), ...(build !== undefined && { build }) };
      const query = { after: 0, limit, last: true, ...(types && { types }), ...about };
      // Known before the list is read, so that nothing falls in between.
      const operator = new Operator(hf);
      const newest = await operator.newestEvent();
      const past = (await operator.events(query)).filter(({ seq }) => !options.follow || seq <= newest);
      if (isJson(command)) for (const event of past) write(JSON.stringify(event));
      else if (options.follow) for (const event of past) write(lineOf(event));
      else write(past.length === 0 ? paint("dim", "Nothing is told.") : table(COLUMNS, past));
      if (options.follow) await follow(operator, options, newest, isJson(command));
    });
}

/** Nothing is stored about who follows. */
async function follow(operator: Operator, { type: types, job, build }: Options, from: number, json: boolean): Promise<void> {
  const tell = (event: Event) => {
    const isAsked = (job === undefined || event.job === job) && (build === undefined || event.build === build);
    if (isAsked) write(json ? JSON.stringify(event) : lineOf(event));
  };
  const subscription = operator.followEvents(tell, types === undefined ? {} : { types }, from);
  using over = untilInterrupted();
  await new Promise<void>((resolve) => {
    if (over.aborted) return resolve();
    over.addEventListener("abort", () => resolve());
    // `holdfast events --follow | head` has seen enough.
    process.stdout.once("error", () => resolve());
  });
  await subscription.end();
}

const COLUMNS: Column<Event>[] = [
  { title: "SEQ", right: true, value: ({ seq }) => String(seq) },
  { title: "AT", value: ({ at }) => clock(at), style: () => "dim" },
  { title: "TYPE", value: ({ type }) => type, style: styleOf },
  { title: "JOB OR BUILD", value: ({ job, build }) => job ?? build ?? "", least: 17 },
  { title: "DATA", value: ({ data }) => JSON.stringify(data), least: 12, style: () => "dim" },
];

/** While it is followed nobody knows how wide the next one will be. */
function lineOf(event: Event): string {
  const [seq, at, type, job, data] = COLUMNS.map(({ value }) => oneLine(value(event))) as [
    string,
    string,
    string,
    string,
    string,
  ];
  const about = [job, paint("dim", data)].filter((text) => text !== "").join("  ");
  return `${seq.padStart(6)}  ${paint("dim", at)}  ${paint(styleOf(event), type.padEnd(15))}  ${about}`;
}

function styleOf({ type }: Event): Style | null {
  if (type.endsWith(".quarantined")) return "red";
  if (/\.(failed|returned|crashed|paused|broken)$/.test(type)) return "yellow";
  return type.endsWith(".succeeded") ? "green" : null;
}

function write(line: string): void {
  process.stdout.write(`${line}\n`);
}

function addSinks(parent: Command): void {
  parent
    .command("sinks")
    .summary("who is told, and how far behind each is")
    .description("Show every sink and durable subscriber: how far behind it is, whether it fails, and why.")
    .addHelpText("after", examples("holdfast events sinks"))
    .action(async (_options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const sinks = await operator.sinks();
      answer(command, { sinks }, () =>
        sinks.length === 0 ? paint("dim", "Nobody is told.") : table(sinkColumns(operator.now()), sinks),
      );
    });
}

function sinkColumns(now: number): Column<SinkView>[] {
  const ago = (at: number | null) => (at === null ? "" : age(now - at));
  return [
    { title: "NAME", value: ({ name }) => name, least: 8 },
    { title: "KIND", value: ({ kind }) => kind },
    { title: "BEHIND", right: true, value: ({ behind }) => number(behind) },
    { title: "OLDEST", right: true, value: ({ oldestAt }) => ago(oldestAt) },
    { title: "DELIVERED", right: true, value: ({ deliveredAt }) => (deliveredAt === null ? "never" : `${ago(deliveredAt)} ago`) },
    {
      title: "FAILED",
      right: true,
      value: ({ failures }) => (failures === 0 ? "" : `${number(failures)}×`),
      style: () => "yellow",
    },
    { title: "ERROR", value: ({ error, failedAt }) => (error === null ? "" : `${error} (${ago(failedAt)} ago)`), least: 12 },
  ];
}

function addForget(parent: Command): void {
  parent
    .command("forget")
    .summary("forget a sink or subscriber that will not come back")
    .description(
      "Forget a sink or durable subscriber, and what it has not got yet. Until then nothing is removed that it has not got. One that is still in use starts anew.",
    )
    .argument("<name>", "its name, as in `holdfast events sinks`")
    .addHelpText("after", examples("holdfast events forget old-audit"))
    .action(async (name: string, _options: object, command: Command) => {
      await using hf = await openExisting(command);
      const operator = new Operator(hf);
      const sinks = await operator.sinks();
      const known = sinks.find((sink) => sink.name === name);
      if (known === undefined || !(await operator.forgetSink(name))) {
        throw noSuchSink(
          name,
          sinks.map((sink) => sink.name),
        );
      }
      answer(command, { name, behind: known.behind }, () => `Forgot ${oneLine(name)}; it was ${known.behind} behind.`);
    });
}

function noSuchSink(name: string, others: readonly string[]): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_SINK",
    `There is no sink or subscriber ${name}.`,
    others.length === 0 ? "Nobody is told." : `There are: ${others.join(", ")}.`,
  );
}
