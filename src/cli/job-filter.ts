import { type Command, InvalidArgumentError, Option } from "commander";
import { type JobFilter, parseInputPair } from "../core/jobs/filter.ts";
import { type JobState, JOB_STATES } from "../core/jobs/job.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { definedOnly } from "../core/text/options.ts";
import { collect, parseInstant } from "./arguments.ts";

export type FilterOptions = Omit<JobFilter, "state" | "input"> & { state?: JobState[]; input?: [string, Scalar][] };
type Scalar = NonNullable<JobFilter["input"]>[string];

export function addFilterOptions(command: Command): Command {
  return command
    .option("--queue <queue>", "only jobs of this queue")
    .option("--name <name>", "only jobs of this name")
    .addOption(new Option("--state <state>", "only jobs in this state; may be repeated").choices(JOB_STATES).argParser(oneState))
    .option("--key <key>", "only jobs with this key")
    .option("--tag <tag>", "only jobs with this tag")
    .option("--error <text>", "only jobs whose last error has this in its name, code or message")
    .option("--input <path=value>", "only jobs with this value in their input, e.g. user.id=7; may be repeated", onePair)
    .option("--created-after <date>", "only jobs created then or later", parseInstant)
    .option("--created-before <date>", "only jobs created before", parseInstant)
    .option("--finished-after <date>", "only jobs that ended then or later", parseInstant)
    .option("--finished-before <date>", "only jobs that ended before", parseInstant);
}

export function filterOf(options: FilterOptions): JobFilter {
  const { queue, name, state, key, tag, error, createdAfter, createdBefore, finishedAfter, finishedBefore } = options;
  const input = options.input === undefined ? undefined : Object.fromEntries(options.input);
  const times = { createdAfter, createdBefore, finishedAfter, finishedBefore };
  return definedOnly({ queue, name, state, key, tag, error, input, ...times });
}

function oneState(text: string, all: JobState[] = []): JobState[] {
  const state = JOB_STATES.find((one) => one === text);
  if (state === undefined) throw new InvalidArgumentError(`Allowed choices are ${JOB_STATES.join(", ")}.`);
  return collect(state, all);
}

function onePair(text: string, all: [string, Scalar][] = []): [string, Scalar][] {
  const pair = parseInputPair(text);
  if (pair === null) throw new InvalidArgumentError("Give a path and its value, e.g. user.id=7.");
  return collect(pair, all);
}

/** An empty filter matches every job, which a typing mistake must not change. */
export function idsOrFilter(command: Command): void {
  const { yes: _, ...flags } = command.opts<FilterOptions & { yes?: boolean }>();
  const hasFilter = Object.keys(filterOf(flags)).length > 0;
  if (command.args.length > 0 !== hasFilter) return;
  throw new HoldfastError(
    "USAGE",
    hasFilter ? "Both ids and a filter were given." : "Neither an id nor a filter was given.",
    "Give the ids of jobs, or flags that say which, e.g. --state failed --queue mail.",
  );
}
