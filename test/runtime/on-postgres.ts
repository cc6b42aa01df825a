import { after, before } from "node:test";
import { Schema } from "../conformance/postgres-store.ts";
import { firstOf, testAllOnly } from "../selection.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { standOn } from "./parts.ts";

/** Tests of others, imported after this, run on a server. A schema is emptied and used again: that is ten times as fast. */
let server: PostgresServer | undefined;
const free: Schema[] = [];
before(async () => void (server = noServer === false ? await startServer() : undefined));
after(() => server?.close());

let every = 1;
let slow = new Set<string>();
let met = 0;

standOn({
  skips(name) {
    if (noServer !== false) return noServer;
    if (slow.delete(name)) return testAllOnly.skip ?? null;
    return firstOf(3 * every, met++).skip ?? null;
  },
  async fresh() {
    const home = server as PostgresServer;
    const schema = free.pop() ?? (await Schema.make(home));
    const leave = async () => {
      await schema.empty();
      free.push(schema);
    };
    return { where: home.url(), options: { schema: schema.name }, leave };
  },
  shared: () => (server as PostgresServer).createDatabase(),
});

/** The tests of this file. `npm test` runs the first of each group of three times `every`, without those that take long on a server. */
export async function take(suite: string, sample: { every: number; slow?: readonly string[] } = { every: 1 }): Promise<void> {
  every = sample.every;
  slow = new Set(sample.slow);
  met = 0;
  await import(`./${suite}.test.ts`);
  if (slow.size > 0) throw new Error(`There is no test "${[...slow].join('", "')}" in ${suite}.test.ts.`);
}
