import type { Command } from "commander";
import { type Duration, toMillis } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { definedOnly, checkName, didYouMean } from "../../core/text/options.ts";
import type { EnqueueOptions } from "../../core/pipelines/stage.ts";
import { type Definition, definitionOf, job } from "../../engine/definition.ts";
import { collect, parseInstant, readJson, wholeNumber } from "../arguments.ts";
import { configOf, modulesOf } from "../config.ts";
import { openOrCreate } from "../database.ts";
import { definitionsIn } from "../modules.ts";
import { answer } from "../render/output.ts";
import { paint } from "../render/table.ts";
import { addCommand } from "../verb.ts";

interface Options {
  module?: string;
  queue?: string;
  id?: string;
  key?: string;
  priority?: number;
  delay?: string;
  runAt?: Date;
  after?: string[];
  tag?: string[];
  replace?: boolean;
}

export function enqueueCommand(parent: Command): void {
  addCommand(parent, "enqueue", {
    description: "Put a job into its queue, and print its id once the job is durable.",
    examples: [
      `holdfast enqueue resize '{"url":"https://example.com/a.png"}' --module jobs.ts`,
      "cat input.json | holdfast enqueue resize - --key a.png --delay 10m",
      "holdfast enqueue report --after 1p0k9r3zq00000007 1p0k9r3zq00000008",
    ],
  })
    .argument("<name>", "the job's name")
    .argument("[json]", "its input; - reads it from standard input")
    .option("--module <file>", "module that defines the job: its schema, retry, limits (default: the config's modules)")
    .option("--queue <queue>", "queue to use instead of the job's own")
    .option("--id <id>", "one job ever with this id")
    .option("--key <key>", "one unfinished job of this name with this key")
    .option("--priority <number>", "higher runs first (default: 0)", wholeNumber)
    .option("--delay <duration>", "not before this has passed, e.g. 30s, 10m, 2h")
    .option("--run-at <date>", "not before then, e.g. 2026-12-31T23:00:00Z", parseInstant)
    .option("--after <ids...>", "when these jobs have succeeded; cancelled when one of them ends otherwise")
    .option("--replace", "with --key: an unfinished job with this key gets the new input, delay and priority")
    .option("--tag <tag>", "a word to find the job by; may be repeated", collect<string>)
    .action(async (name: string, json: string | undefined, options: Options, command: Command) => {
      const input = await readJson(json, "The input");
      const wished = optionsOf(options);
      const definition = await find(name, options, command);
      await using hf = await openOrCreate(command);
      const { id, duplicate } = await hf.enqueue(definition, input, wished);
      answer(command, { id, duplicate }, () => (duplicate ? `${id} ${paint("yellow", "duplicate")}` : id));
    });
}

async function find(name: string, options: Options, command: Command): Promise<Definition> {
  const config = configOf(command);
  const definition =
    options.module !== undefined
      ? await definedIn([options.module], name, `${options.module} exports no job "${name}".`)
      : config !== null
        ? await definedIn(modulesOf(config), name, `No module of ${config.file} exports a job "${name}".`)
        : // Defaults: the worker validates the input with its own definition.
          definitionOf(job({ name, run: () => undefined }));
  return options.queue === undefined ? definition : { ...definition, queue: checkName(options.queue, "The queue") };
}

async function definedIn(files: readonly string[], name: string, missing: string): Promise<Definition> {
  const all = await definitionsIn(files);
  const newest = all.filter((one) => one.name === name).sort((a, b) => b.version - a.version)[0];
  if (newest !== undefined) return newest;
  const names = [...new Set(all.map((one) => one.name))];
  throw new HoldfastError(
    "USAGE",
    missing,
    names.length === 0
      ? "No job is exported: export what job({ … }) returns."
      : `${didYouMean(name, names)}Available jobs: ${names.join(", ")}.`,
  );
}

function optionsOf({ id, key, priority, delay, runAt, after, tag: tags, replace }: Options): EnqueueOptions {
  const delayMs = delay === undefined ? undefined : toMillis(delay as Duration, "--delay");
  return definedOnly({
    id,
    key,
    priority,
    delay: delayMs,
    runAt,
    after,
    tags,
    onDuplicate: replace ? ("replace" as const) : undefined,
  });
}
