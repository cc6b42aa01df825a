import { after, before, describe, type TestContext } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
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

async function prepared(scene: Scene, { bare } = { bare: false }): Promise<Scene> {
  await (bare ? scene.clear() : scene.prepare());
  return scene;
}
