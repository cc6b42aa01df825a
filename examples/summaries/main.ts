/**
 * Summaries by a language model, with a limit on what they may cost. The estimated cost of a request is reserved before
 * it is made. When the budget is used up, the build pauses, durably: it is resumed only with a single-use token and a new
 * budget. What was paid for is not paid for again. The model and its prices are made up.
 *
 *   node examples/summaries/main.ts [folder]
 */
import { join } from "node:path";
import { HoldfastError, items, open, pipeline } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";

/** Reports of a lighthouse, longer and longer. */
const REPORTS = Array.from({ length: 12 }, (_, i) => ({
  day: `2026-03-${String(i + 1).padStart(2, "0")}`,
  text: "Fog since noon, the horn sounded. ".repeat(i + 1).trim(),
}));

let asked = 0;

const summaries = pipeline("lighthouse", { budget: { usd: 0.3 } })
  .source(items(() => REPORTS, { id: ({ day }) => day }))
  .stage(
    "summarise",
    // The model and the prompt are part of the key: with others, every summary is made anew.
    { key: { model: "keeper-2", prompt: "One line." }, estimate: ({ input }) => ({ usd: priceOf(input.text) }) },
    async ({ input, cost, signal }) => {
      const { line, usd } = await ask(input.text, signal);
      cost({ usd, tokens: input.text.length });
      return line;
    },
  )
  .gather("log", {}, async ({ inputs }) => {
    const lines: string[] = [];
    for await (const { target, output } of inputs) lines.push(`${target.id}: ${output}`);
    return lines.join("\n");
  });

using folder = exampleFolder("summaries");
await using hf = await open(join(folder.path, "summaries.db"));

const { estimate } = await hf.builds.plan(summaries);
console.log(`The plan: all of it will cost $${estimate.usd}, and $0.3 is allowed.`);

const first = await (await hf.builds.start(summaries, { concurrency: 3 })).done();
console.log(`${first.state} (${first.reason}) after ${first.stages["summarise"]?.ran} summaries and $${first.spent.usd}.`);

// A nightly cron cannot exceed its own budget, and a token cannot be guessed.
await refused("starting anew", () => hf.builds.start(summaries));
await refused("a made-up token", () => hf.builds.resume(summaries, first.id, { token: "please", budget: { usd: 9 } }));

const token = first.token as string; // shown once, good for an hour; `hf.builds.mintToken` makes another
const second = await hf.builds.resume(summaries, first.id, { token, budget: { usd: 0.9 } });
const done = await second.done();
console.log(`${done.state} with ${done.stages["summarise"]?.ran} summaries, ${asked} requests and $${done.spent.usd}.`);
console.log((await second.output("log")).split("\n").at(-1));

await refused("the same token again", () => hf.builds.resume(summaries, first.id, { token, budget: { usd: 9 } }));

const again = await (await hf.builds.start(summaries)).done();
console.log(`Another build: ${again.stages["summarise"]?.cached} summaries reused, $${again.spent.usd}, ${asked} requests.`);

/** A hundredth of a dollar, and a tenth of a cent for each ten letters. */
function priceOf(text: string): number {
  return (10 + Math.ceil(text.length / 10)) / 1_000;
}

async function ask(text: string, signal: AbortSignal): Promise<{ line: string; usd: number }> {
  signal.throwIfAborted();
  asked++;
  return { line: `${text.split(". ").length} times fog`, usd: priceOf(text) };
}

async function refused(what: string, act: () => Promise<unknown>): Promise<void> {
  const error = await act().then(
    () => null,
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof HoldfastError)) throw new Error(`${what} was not refused`, { cause: error });
  console.log(`${what}: refused with ${error.code}`);
}
