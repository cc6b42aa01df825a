import type { Command } from "commander";
import { clock } from "../../core/age.ts";
import type { Event } from "../../core/event.ts";
import { Operator } from "../../runtime/operator.ts";
import { atLeastOne } from "../arguments.ts";
import { openExisting } from "../database.ts";
import { isJson } from "../render/output.ts";
import { type Column, oneLine, paint, type Style, table } from "../render/table.ts";
import { untilInterrupted } from "../signals.ts";
import { examples } from "../verb.ts";

interface Options {
  limit: number;
  type?: string[];
  job?: string;
  build?: string;
  follow?: boolean;
}

export function listEvents(events: Command): Command {
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
