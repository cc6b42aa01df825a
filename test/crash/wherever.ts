import { after, before, describe, type TestContext } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { sample } from "./random.ts";
import { Scene } from "./scene.ts";

/** A scene whose database is there already, unless it is to be `bare`. */
export type Stage = (t: TestContext, options?: { bare: boolean }) => Promise<Scene>;

/** Where a database can be. */
export type Place = "file" | "server";

/** The same tests for every place that a database can be in. */
export function wherever(tests: (stage: Stage, place: Place) => void): void {
  describe("in a file", () => tests((t, options) => prepared(new Scene(t), options), "file"));
  describe("on PostgreSQL", { skip: noServer }, () => {
    let server: PostgresServer;
    before(async () => void (server = await startServer()));
    after(() => server.close());
    tests((t, options) => prepared(new Scene(t, server), options), "server");
  });
}

/**
 * Of variants of one thing an ordinary run takes all in a file and one on a server, where what differs between them is
 * the same: another one with each seed, and with each `turn`.
 */
export function variants<T>(place: Place, all: readonly T[], turn = 0): readonly T[] {
  return place === "file" ? all : sample(all, turn);
}

async function prepared(scene: Scene, { bare } = { bare: false }): Promise<Scene> {
  await (bare ? scene.clear() : scene.prepare());
  return scene;
}
