import { after, before, describe } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { postgresOn } from "./postgres-store.ts";
import { conformance } from "./suite.ts";

describe("PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  conformance(postgresOn(() => server));
});
