import assert from "node:assert/strict";
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { type BuildOptions, files, type Pipeline, pipeline } from "../../src/index.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { Random } from "../simulation/random.ts";
import { type Built, ONCE, test, type Yard, yard } from "./parts.ts";

const [ROUNDS, BUILDS] = LONG ? [60, 12] : [2, 6];

/** What may be different from build to build. */
interface Shape {
  version: number;
  key: string;
  match: string;
  reuse: "target" | "bytes";
  partial: boolean;
  by: "parent" | "id";
}

const STAGES = ["read", "loud", "split", "say", "group", "total"];

/**
 * Files of lines "id=text", of which those that say "bad" fail. What the stages "loud" and "say" have made is outside, too, as
 * in an index: put there when they run, and taken away by their `remove`.
 */
function lines({ root, ran }: Yard, shape: Shape, outside: Map<string, string>): Pipeline {
  const put = (stage: string, id: string, value: string): string => {
    ran.push(`${stage} ${id}`);
    outside.set(`${stage} ${id}`, value);
    return value;
  };
  return pipeline("lines")
    .source(files("**/*", { root }))
    .stage("read", { reuse: shape.reuse }, async ({ target }) => {
      ran.push(`read ${target.id}`);
      return new TextDecoder().decode(await target.bytes());
    })
    .stage(
      "loud",
      { match: shape.match, ...ONCE, remove: ({ target }) => void outside.delete(`loud ${target.id}`) },
      ({ input, target }) => {
        if (input.includes("bad")) throw new Error("this is bad");
        return put("loud", target.id, input.toUpperCase());
      },
    )
    .expand("split", { reuse: shape.reuse, version: shape.version }, function* ({ input, target }) {
      ran.push(`split ${target.id}`);
      for (const line of input.split("\n")) yield { id: line.split("=")[0] as string, value: line };
    })
    .stage(
      "say",
      {
        key: shape.key,
        uses: ["loud"],
        remove: ({ target }) => void outside.delete(`say ${target.parent?.id}/${target.id}`),
      },
      ({ input, outputs, target }) =>
        put("say", `${target.parent.id}/${target.id}`, `${shape.key} ${outputs.loud?.length} ${input}`),
    )
    .gather(
      "group",
      { by: (target) => (shape.by === "parent" ? target.parent.id : target.id), partial: shape.partial },
      async ({ inputs, target, failed }) => {
        ran.push(`group ${target.id}`);
        const all: string[] = [`${failed} failed`];
        for await (const { output } of inputs) all.push(output);
        return all;
      },
    )
    .gather("total", { partial: shape.partial }, async ({ inputs, failed }) => {
      ran.push("total");
      const all: unknown[] = [`${failed} failed`];
      for await (const { target, output } of inputs) all.push([target.id, output]);
      return all;
    });
}

for (const seed of SEEDS)
  test(`after any change, a build produces what a build from nothing produces, and the next one runs nothing (HOLDFAST_SEED=${seed})`, async (t) => {
    for (let round = 0; round < ROUNDS; round++) await play(t, seed + round);
  });

async function play(t: TestContext, seed: number): Promise<void> {
  const here = await yard(t);
  const dice = new Random(seed);
  const outside = new Map<string, string>();
  let shape: Shape = { version: 1, key: "k1", match: "*", reuse: "target", partial: false, by: "parent" };
  const story: string[] = [];
  const note = (what: string): void => void story.push(what);
  for (let n = 0; n < BUILDS; n++) {
    for (let change = dice.int(0, 3); change >= 0; change--) note(changeFile(here, dice));
    if (dice.chance(1 / 2)) shape = changeShape(shape, dice);
    note(JSON.stringify(shape));
    const docs = lines(here, shape, outside);
    if (dice.chance(1 / 3)) note(await disturbed(here, docs, dice));
    const built = await here.build(docs);
    note(`${built.state} ${here.taken().join(", ")}`);
    const where = `seed ${seed}\n${story.join("\n")}`;
    await compare(t, here, shape, built, outside, where);
    if (built.state !== "SUCCESS") continue;
    await here.succeed(docs);
    assert.deepEqual(here.taken(), [], `nothing runs again\n${where}`);
  }
  await here.close();
}

function changeFile(here: Yard, dice: Random): string {
  const there = readdirSync(here.root);
  const name = dice.pick(["a", "b", "c", "d"]);
  if (there.includes(name) && dice.chance(0.25)) {
    rmSync(join(here.root, name));
    return `remove ${name}`;
  }
  const ids = ["x", "y", "z"].filter(() => dice.chance(2 / 3));
  const text = dice.chance(1 / 7) ? "q=bad" : ids.map((id) => `${id}=${dice.int(0, 1)}`).join("\n") || "x=none";
  here.write({ [name]: text });
  return `write ${name} ${JSON.stringify(text)}`;
}

function changeShape(shape: Shape, dice: Random): Shape {
  switch (dice.int(0, 5)) {
    case 0:
      return { ...shape, version: 1 + dice.int(0, 2) };
    case 1:
      return { ...shape, key: dice.pick(["k1", "k2"]) };
    case 2:
      return { ...shape, match: dice.pick(["*", "{a,b}", "[!a]"]) };
    case 3:
      return { ...shape, reuse: dice.pick(["target", "bytes"]) };
    case 4:
      return { ...shape, partial: !shape.partial };
    default:
      return { ...shape, by: dice.pick(["parent", "id"]) };
  }
}

/** A build that is not all, or not to its end. */
async function disturbed(here: Yard, docs: Pipeline, dice: Random): Promise<string> {
  const options: BuildOptions = dice.pick([
    { only: ["loud"] },
    { only: ["a"] },
    { rerun: ["read"] },
    { rerun: ["split"] },
    { rerun: ["say"] },
    {},
  ]);
  const handle = await here.hf.builds.start(docs, { ...options, concurrency: 1 + dice.int(0, 2) });
  if (dice.chance(1 / 2)) {
    for (let turn = dice.int(0, 59); turn > 0; turn--) await new Promise((resolve) => setImmediate(resolve));
    await handle.stop();
    const { id, state } = await handle.done();
    if (state === "CRASHED" && dice.chance(1 / 2)) await (await here.hf.builds.resume(docs, id)).done();
  }
  const { state } = await handle.done();
  return `disturbed: ${JSON.stringify(options)} ${state} ${here.taken().join(", ")}`;
}

/** With one that starts from nothing. */
async function compare(
  t: TestContext,
  here: Yard,
  shape: Shape,
  built: Built,
  outside: Map<string, string>,
  where: string,
): Promise<void> {
  const aside = await yard(t);
  const fresh = new Map<string, string>();
  const alone = await aside.build(lines({ ...aside, root: here.root }, shape, fresh));
  assert.equal(built.state, alone.state, where);
  assert.deepEqual(new Set(built.errors.map(told)), new Set(alone.errors.map(told)), where);
  if (built.state === "SUCCESS") {
    for (const stage of STAGES) {
      assert.deepEqual(await outputsIn(built, stage), await outputsIn(alone, stage), `${stage}\n${where}`);
    }
    assert.deepEqual(Object.fromEntries([...outside].sort()), Object.fromEntries([...fresh].sort()), `outside\n${where}`);
  }
  await aside.close();
}

function told({ stage, target, message }: Built["errors"][number]): string {
  return `${stage} ${target} ${message}`;
}

async function outputsIn({ handle }: Built, stage: string): Promise<unknown[]> {
  const all: unknown[] = [];
  for await (const { target, output } of handle.outputs(stage)) all.push([target, output]);
  return all;
}
