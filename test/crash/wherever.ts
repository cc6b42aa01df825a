import { after, before, describe, type TestContext } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { firstOf, selectVariant, testAllOnly } from "../selection.ts";
import { Scene } from "./scene.ts";

/** A scene whose database is there already, unless it is to be `bare`. */
export type Stage = (t: TestContext, options?: { bare: boolean }) => Promise<Scene>;

/** Where a database can be. */
export type Place = "file" | "server";

export const MOMENTS = ["begun", "written", "committed"] as const;
export type Moment = (typeof MOMENTS)[number];

/** The same tests for every place that a database can be in; `testAll`: on a server only in `npm run test:all`. */
export function wherever(tests: (stage: Stage, place: Place) => void, { testAll = false } = {}): void {
  describe("in a file", () => tests((t, options) => prepared(new Scene(t), options), "file"));
  describe("on PostgreSQL", { skip: noServer, ...(testAll && testAllOnly) }, () => {
    let server: PostgresServer;
    before(async () => void (server = await startServer()));
    after(() => server.close());
    tests((t, options) => prepared(new Scene(t, server), options), "server");
  });
}

/** Options of a test that `npm test` runs in a file; on a server only `npm run test:all` runs it. */
export function inFile(place: Place): { skip?: string } {
  return place === "file" ? {} : testAllOnly;
}

/** Options of the test at `position`: `npm test` runs each in a file, and the first of each group of `every` on a server. */
export function firstOnServer(place: Place, every: number, position: number): { skip?: string } {
  return place === "file" ? {} : firstOf(every, position);
}

/** Options of a test that kills a build at `point`: `npm test` leaves out `begun`, which has to come to the same as `written`. */
export function atPoint(place: Place, point: string): { skip?: string } {
  return point.endsWith(":begun") ? testAllOnly : inFile(place);
}

/** `npm test` runs every variant of a case in a file, and one on a server: the variants take turns from position to position. */
export function variantsAt<T>(place: Place, all: readonly T[], position = 0): readonly T[] {
  return place === "file" ? all : selectVariant(all, position);
}

async function prepared(scene: Scene, { bare } = { bare: false }): Promise<Scene> {
  await (bare ? scene.clear() : scene.prepare());
  return scene;
}
