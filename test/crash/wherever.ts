import { after, before, describe, type TestContext } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { Scene } from "./scene.ts";

/** A scene whose database is there already. */
export type Stage = (t: TestContext) => Promise<Scene>;

/** The same tests for every place that a database can be in. */
export function wherever(tests: (stage: Stage) => void): void {
  describe("in a file", () => tests((t) => prepared(new Scene(t))));
  describe("on PostgreSQL", { skip: noServer }, () => {
    let server: PostgresServer;
    before(async () => void (server = await startServer()));
    after(() => server.close());
    tests((t) => prepared(new Scene(t, server)));
  });
}

async function prepared(scene: Scene): Promise<Scene> {
  await scene.prepare();
  return scene;
}
