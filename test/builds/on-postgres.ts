import { after, before } from "node:test";
import { Schema } from "../conformance/postgres-store.ts";
import { SEED } from "../crash/random.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { standOn } from "./parts.ts";

/** Tests of others, imported after this, run on a server; of those an ordinary run takes some, by the seed. */
let server: PostgresServer | undefined;
const free: Schema[] = [];
before(async () => void (server = noServer === false ? await startServer() : undefined));
after(() => server?.close());

const EVERY = 15;
let met = SEED;

standOn({
  skips() {
    if (noServer !== false) return noServer;
    return met++ % EVERY === 0 || process.env["HOLDFAST_LONG"] ? null : `one of ${EVERY} is enough of a sample`;
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
