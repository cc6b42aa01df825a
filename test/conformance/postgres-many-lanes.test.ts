import { after, before, describe } from "node:test";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { postgresOn } from "./postgres-store.ts";
import { conformance } from "./suite.ts";

/** So many that a claim asks the server first which of them have jobs. */
const OTHER_LANES = 40;

describe("PostgreSQL with many definitions", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  conformance(
    postgresOn(() => server, OTHER_LANES),
    { areas: ["claim"] },
  );
});
