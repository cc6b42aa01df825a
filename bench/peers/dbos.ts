import { payload } from "../scratch.ts";
import { peer, type Player } from "./player.ts";

interface Dbos {
  DBOS: {
    setConfig(config: object): void;
    launch(): Promise<void>;
    shutdown(): Promise<void>;
    registerWorkflow<In, Out>(run: (input: In) => Promise<Out>, config: { name: string }): (input: In) => Promise<Out>;
    runStep<Out>(run: () => Promise<Out>, config: { name: string }): Promise<Out>;
  };
}

/** Workflows that run at once; with more, they wait for connections. */
const AT_ONCE = 100;

/** Workflows are called directly: through a queue each of them waits for the next poll. */
export async function open(url: string): Promise<Player> {
  const { DBOS } = await peer<Dbos>("@dbos-inc/dbos-sdk");
  const seen = { onStep: (): void => {} };
  const step = <Out>(name: string, out: Out): Promise<Out> => DBOS.runStep(async () => (seen.onStep(), out), { name });
  const run = DBOS.registerWorkflow(
    async (input: ReturnType<typeof payload>) => {
      const { size } = await step("parse", { size: input.url.length });
      const { count } = await step("count", { count: size });
      return step("index", { indexed: count });
    },
    { name: "docs" },
  );
  DBOS.setConfig({ name: "bench", systemDatabaseUrl: url, systemDatabasePoolSize: 20, logLevel: "error" });
  await DBOS.launch();
  return {
    pipeline: async (targets, count) => {
      seen.onStep = count;
      let next = 0;
      const work = async (): Promise<void> => {
        while (next < targets) await run(payload(next++));
      };
      await Promise.all(Array.from({ length: AT_ONCE }, work));
    },
    close: () => DBOS.shutdown(),
  };
}
