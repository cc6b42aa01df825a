import { join } from "node:path";
import { files, pipeline } from "../../src/index.ts";
import { type Answer, price } from "./service.ts";

export const LIBRARY = join(import.meta.dirname, "library");

/** Steps at the same time. */
export const AT_ONCE = 4;

/** Part of the key of what it makes: with another model, or other words, every summary is made anew. */
const ASKED = { model: "limpet-1", prompt: "Say in two sentences what is strange about this creature." };

/** `service`: where the language model is. `onRun`: called at every start of a handler. */
export function tidePools(service: string, onRun: (stage: string, target: string) => void = () => {}) {
  return pipeline("tide-pools")
    .source(files("*.md", { root: LIBRARY }))
    .stage("parse", { version: 1 }, async ({ target }) => {
      onRun("parse", target.id);
      return parse(new TextDecoder().decode(await target.bytes()));
    })
    .stage(
      "summarise",
      // The estimate is reserved before a request is made, and charged if the process dies before it records the cost.
      { key: ASKED, estimate: ({ input }) => price(input.text), uses: ["parse"] },
      async ({ target, input, outputs, cost, idempotencyKey, signal }) => {
        onRun("summarise", target.id);
        const headers = { "idempotency-key": idempotencyKey };
        const response = await fetch(service, { method: "POST", body: input.text, headers, signal });
        const { summary, billed } = (await response.json()) as Answer;
        cost(billed);
        return { title: outputs.parse.title, zones: outputs.parse.zones, summary };
      },
    )
    .gather("index", {}, async ({ inputs, artifact }) => {
      onRun("index", "index");
      const lines = ["# Tide pools", ""];
      const zones = new Map<string, string[]>();
      for await (const { target, output } of inputs) {
        lines.push(`- [${output.title}](${target.id}): ${output.summary}`);
        for (const zone of output.zones) zones.set(zone, [...(zones.get(zone) ?? []), output.title]);
      }
      await artifact("index.md", `${lines.join("\n")}\n`);
      return { documents: lines.length - 2, zones: Object.fromEntries(zones) };
    });
}

/** A title, a line with the creature's name and where on the shore it lives, and the text. */
function parse(document: string): { title: string; zones: string[]; text: string } {
  const [title = "", where = "", ...text] = document.split("\n\n");
  const zones = where
    .slice(where.lastIndexOf(",") + 1)
    .replace("zone", "")
    .split(" and ");
  return { title: title.replace(/^# /, ""), zones: zones.map((zone) => zone.trim()), text: text.join("\n\n").trim() };
}
