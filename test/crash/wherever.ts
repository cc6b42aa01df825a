import { after, before, describe, type TestContext } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { isTaken, sample } from "./random.ts";
import { Scene } from "./scene.ts";

/** A scene whose database is there already, unless it is to be `bare`. */
export type Stage = (t: TestContext, options?: { bare: boolean }) => Promise<Scene>;

/** Where a database can be. */
export type Place = "file" | "server";

export const MOMENTS = ["begun", "written", "committed"] as const;
export type Moment = (typeof MOMENTS)[number];

/** The same tests for every place that a database can be in; on a server, if that is `taken` this time. */
export function wherever(tests: (stage: Stage, place: Place) => void, { taken = true } = {}): void {
  describe("in a file", () => tests((t, options) => prepared(new Scene(t), options), "file"));
  if (!taken) return;
  describe("on PostgreSQL", { skip: noServer }, () => {
    let server: PostgresServer;
    before(async () => void (server = await startServer()));
    after(() => server.close());
    tests((t, options) => prepared(new Scene(t, server), options), "server");
  });
}

/** Of variants of one thing an ordinary run takes one here and another there: others with each seed, and with each `turn`. */
export function variants<T>(place: Place, all: readonly T[], turn = 0): readonly T[] {
  return sample(all, place === "file" ? turn : turn + 1);
}

/** Of what is the same in both places an ordinary run does each in one of them, by the seed and the `turn`. */
export function inOne(place: Place, turn = 0): { skip?: string } {
  return isTaken(turn + Number(place === "file"), 2) ? {} : { skip: "it runs in the other place, by the seed" };
}

/**
 * Where a process is killed in a transaction. An ordinary run takes one moment: on a server one of all three; in a file as
 * often the one after the commit as one of those before it, which have to come to the same.
 */
export function moments(place: Place, turn: number): readonly Moment[] {
  if (place === "server" || process.env["HOLDFAST_LONG"]) return sample(MOMENTS, turn);
  return sample(["begun", "committed", "written", "committed"] as const, turn);
}

async function prepared(scene: Scene, { bare } = { bare: false }): Promise<Scene> {
  await (bare ? scene.clear() : scene.prepare());
  return scene;
}
