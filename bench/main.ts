/**
 * `npm run bench [-- --store postgres] [-- --peers [--write]] [-- --quick] [-- --only latency] [-- --json]`. SQLite: everything
 * as a ratio to raw SQLite. PostgreSQL: against graphile-worker, pg-boss and raw SQL. `--peers`: what users see, against queues
 * and workflow engines on all stores; `--write` puts it into docs/performance.md. All of it measured in the same run, at the
 * default settings; absolute figures are this machine's, and drift.
 */
import { cpus } from "node:os";
import { parseArgs, styleText } from "node:util";
import type { Line, Suite, SuiteOptions } from "./suite.ts";

type OpenSuite = (options: SuiteOptions) => Promise<Suite>;

// Loaded on use: the modules of one suite would count in the memory that another measures.
const stores: Record<string, OpenSuite> = {
  sqlite: async (options) => (await import("./sqlite-suite.ts")).openSqliteSuite(options),
  postgres: async (options) => (await import("./postgres/suite.ts")).openPostgresSuite(options),
};
const peers: OpenSuite = async (options) => (await import("./peers/report.ts")).openPeersSuite(options);

const { values } = parseArgs({
  options: {
    store: { type: "string", default: "sqlite" },
    quick: { type: "boolean", default: false },
    only: { type: "string" },
    json: { type: "boolean", default: false },
    peers: { type: "boolean", default: false },
    write: { type: "boolean", default: false },
  },
});
const open = values.peers ? peers : oneOf(stores, values.store, "--store");
const suite = await open({ quick: values.quick, write: values.write });
try {
  await run(suite);
} finally {
  await suite.close();
}

async function run({ heading, parts }: Suite): Promise<void> {
  const lines: Line[] = [];
  const chosen = values.only === undefined ? parts : { [values.only]: oneOf(parts, values.only, "--only") };
  if (!values.json) console.log(`Node ${process.version}, ${cpus().length} × ${cpus()[0]?.model ?? "?"}\n${heading}`);
  for (const [name, measure] of Object.entries(chosen)) {
    if (process.stderr.isTTY) process.stderr.write(styleText("gray", `measuring ${name} …\r`));
    for (const line of await measure()) {
      lines.push(line);
      if (!values.json) console.log(line.text);
    }
  }
  if (values.json) console.log(JSON.stringify(lines.map(({ data }) => data)));
  process.exitCode = lines.every(({ holds }) => holds) ? 0 : 1;
}

function oneOf<T>(all: Record<string, T>, name: string, option: string): T {
  const found = all[name];
  if (found !== undefined) return found;
  console.error(`${option} ${name}: there is ${Object.keys(all).join(", ")}.`);
  process.exit(2);
}
