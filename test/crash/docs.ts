import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { hasEnded } from "../../src/core/pipelines/build.ts";
import { Outputs } from "../../src/pipelines/outputs.ts";
import { Values } from "../../src/pipelines/values.ts";
import { buildById, type BuildRow, newestBuild } from "../../src/store/builds.ts";
import { type Build, files, type Holdfast, NonRetryableError, pipeline, type Pipeline } from "../../src/index.ts";

/** What it costs to summarise one file, as is known before. */
export const PRICE = 0.01;

export interface Ran {
  stage: string;
  target: string;
  pid: number;
}

/** What a process that builds does besides: when a handler begins, before it ends. */
export interface Watch {
  began?: (ran: Ran) => void | Promise<void>;
  /** After it has said what it costs. */
  paid?: () => Promise<void>;
  lease?: number;
  crashes?: number;
  /** These cannot be summarised, after they were paid for. */
  bad?: readonly string[];
}

/**
 * Documents, as one would: read, summarised for money, split into lines that are indexed one by one, and gathered. Each run
 * of a handler leaves a line outside.
 */
export function documents(
  root: string,
  effects: string,
  { began = () => {}, paid = async () => {}, lease = 30_000, crashes = 1_000, bad = [] }: Watch = {},
) {
  const run = async (stage: string, target: string): Promise<void> => {
    const ran = { stage, target, pid: process.pid };
    appendFileSync(effects, `${JSON.stringify(ran)}\n`);
    await began(ran);
  };
  const patient = { crashes, lease, retry: { attempts: 3, delay: 5, maxDelay: 20 } };
  return pipeline("docs")
    .source(files("**/*.txt", { root }))
    .stage("read", patient, async ({ target }) => {
      const text = new TextDecoder().decode(await target.bytes());
      await run("read", target.id);
      return text;
    })
    .stage("summarise", { ...patient, estimate: () => ({ usd: PRICE, tokens: 10 }) }, async ({ target, input, cost }) => {
      await run("summarise", target.id);
      cost({ usd: PRICE, tokens: 10 });
      await paid();
      if (bad.includes(target.id)) throw new NonRetryableError(`${target.id} is bad`);
      return { title: input.split("\n")[0] ?? "", text: input };
    })
    .expand("lines", patient, async function* ({ target, input }) {
      await run("lines", target.id);
      for (const [at, line] of input.text.split("\n").entries()) yield { id: `line ${at}`, value: line };
    })
    .stage("index", { ...patient, uses: ["summarise"] }, async ({ target, input, outputs }) => {
      await run("index", `${target.parent.id}/${target.id}`);
      return `${outputs.summarise.title}: ${input}`;
    })
    .gather("book", patient, async ({ inputs, target }) => {
      await run("book", target.id);
      const lines: string[] = [];
      for await (const { output } of inputs) lines.push(output);
      return new TextEncoder().encode(lines.join("\n"));
    });
}

export const STAGES = ["read", "summarise", "lines", "index", "book"];

/** Files with two lines each. */
export function writeDocuments(root: string, many: number): string[] {
  mkdirSync(root, { recursive: true });
  const names = Array.from({ length: many }, (_, n) => `${String(n).padStart(3, "0")}.txt`);
  for (const name of names) writeDocument(root, name, `title of ${name}`);
  return names;
}

export function writeDocument(root: string, name: string, title: string): void {
  writeFileSync(join(root, name), `${title}\nmore about ${name}`);
}

/** What every process has run so far. */
export function ranSoFar(effects: string): Ran[] {
  if (!existsSync(effects)) return [];
  const lines = readFileSync(effects, "utf8").split("\n").slice(0, -1);
  return lines.map((line) => JSON.parse(line) as Ran);
}

/** Everything that a build has made, as text. */
export async function madeBy(hf: Holdfast, id: string): Promise<string> {
  const outputs = new Outputs(hf.engine.store, new Values(() => hf.engine.artifacts()));
  const build = (await buildById(hf.engine.store.builds, id)) as BuildRow;
  const made: unknown[] = [];
  for (const stage of STAGES) {
    for await (const { target, output } of outputs.all(build, stage)) {
      made.push([stage, target, output instanceof Uint8Array ? Buffer.from(output).toString("base64") : output]);
    }
  }
  return JSON.stringify(made, null, 1);
}

/** Resumes the newest build, if it has not ended, else starts one; until it is over. */
export async function goOn(hf: Holdfast, docs: Pipeline): Promise<Build> {
  const newest = await newestBuild(hf.engine.store.builds, "docs");
  const handle =
    newest === null || hasEnded(newest.state) ? await hf.builds.start(docs) : await hf.builds.resume(docs, newest.id);
  return handle.done();
}
