import { after, before } from "node:test";
import { Schema } from "../conformance/postgres-store.ts";
import { firstOf } from "../selection.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { standOn } from "./parts.ts";

/** Tests of others, imported after this, run on a server. `npm test` runs the first of each group of `EVERY`. */
let server: PostgresServer | undefined;
const free: Schema[] = [];
before(async () => void (server = noServer === false ? await startServer() : undefined));
after(() => server?.close());

const EVERY = 15;
let met = 0;

standOn({
  skips() {
    if (noServer !== false) return noServer;
    return firstOf(EVERY, met++).skip ?? null;
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
});
