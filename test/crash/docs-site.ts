import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { hash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { open } from "../../src/index.ts";
import { documents, goOn, madeBy, type Ran, ranSoFar, writeDocuments } from "./docs.ts";
import type { Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";

/** A folder of documents, and what must be true of a build of them whatever happened. */
export interface Site {
  root: string;
  /** Output of a build that is not disturbed. */
  expected(): Promise<string>;
  /** Resumes the unfinished build to its end: nothing that was done is done again. Returns the total cost. */
  goesOn(): Promise<number>;
}

export async function documentsOf(scene: Scene, many: number): Promise<Site> {
  const root = join(scene.folder, "docs");
  writeDocuments(root, many);
  // It is made of the same, wherever that lies.
  const expected = () => alone(root, join(scene.folder, "aside"));
  const goesOn = async (): Promise<number> => {
    const done = await finished(scene);
    const before = ranSoFar(scene.effects).length;
    const hf = await scene.open({ artifacts: `${root}-artifacts` });
    const docs = documents(root, scene.effects);
    const { id, state, reason, errors, spent } = await goOn(hf, docs);
    assert.equal(state, "SUCCESS", `${reason} ${JSON.stringify(errors)}`);
    const again = ranSoFar(scene.effects).slice(before).map(nameOf);
    assert.deepEqual(
      again.filter((name) => done.has(name)),
      [],
      "what was finished is not run again",
    );
    assert.deepEqual(
      again.filter((name, at) => again.indexOf(name) !== at),
      [],
      "and nothing is run twice",
    );
    assert.equal(await madeBy(hf, id), await expected(), "the outputs are those of an undisturbed build");
    const row = await buildById(hf.engine.store.builds, id);
    assert.deepEqual([row?.reserved, row?.open], [{ micros: 0, tokens: 0 }, 0]);
    return spent.usd;
  };
  return { root, expected, goesOn };
}

/** Output of a build of these files that is not disturbed. */
async function alone(root: string, aside: string): Promise<string> {
  const content = hash(
    "sha256",
    readdirSync(root)
      .map((name) => readFileSync(join(root, name), "utf8"))
      .join("\n"),
  );
  let made = ALONE.get(content);
  if (made === undefined) ALONE.set(content, (made = buildAlone(root, aside)));
  return made;
}

const ALONE = new Map<string, Promise<string>>();

async function buildAlone(root: string, aside: string): Promise<string> {
  const hf = await open(":memory:", { artifacts: aside });
  const { id } = await (await hf.builds.start(documents(root, `${aside}-effects`))).done();
  const made = await madeBy(hf, id);
  await hf.close();
  return made;
}

/** The names of what has a result. */
async function finished(scene: Scene): Promise<Set<string>> {
  const rows = await scene.witness.query("select stage, path from {results} where state = 'SUCCESS'");
  return new Set(rows.map(({ stage, path }) => `${String(stage)} ${String(path).replaceAll("\u001f", "/")}`));
}

export async function building(scene: Scene, { root }: Site, more: object = {}): Promise<Child & { build: string }> {
  const child = scene.start("builder", { root, ...more });
  await child.next("ready");
  child.send({ type: "build" });
  return Object.assign(child, { build: (await child.next("leading"))["id"] as string });
}

export async function stateOf(scene: Scene, build: string): Promise<Record<string, unknown> | undefined> {
  return (await scene.witness.query(`select state, reason from {builds} where id = '${build}'`))[0];
}

export function nameOf({ stage, target }: Ran): string {
  return `${stage} ${target}`;
}
