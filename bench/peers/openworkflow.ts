import { payload } from "../scratch.ts";
import { peer, type Player } from "./player.ts";

type Step = { run<Out>(config: { name: string }, run: () => Promise<Out>): Promise<Out> };
interface Backend {
  stop(): Promise<void>;
}
interface OpenWorkflowPackage {
  OpenWorkflow: new (options: { backend: Backend }) => {
    defineWorkflow<In>(
      spec: { name: string },
      run: (context: { input: In; step: Step }) => Promise<unknown>,
    ): { run(input: In): Promise<{ result(): Promise<unknown> }> };
    newWorker(options: { concurrency: number }): { start(): Promise<void>; stop(): Promise<void> };
  };
}
type Backends = Record<string, { connect(place: string): Promise<Backend> | Backend }>;

/** Of 10, 50 and 100 workflows at once, 50 were the fastest. */
const CONCURRENCY = 50;

export async function open(place: string): Promise<Player> {
  const isServer = place.startsWith("postgres");
  const backends = await peer<Backends>(isServer ? "openworkflow/postgres" : "openworkflow/sqlite");
  const backend = await (backends[isServer ? "BackendPostgres" : "BackendSqlite"] as Backends[string]).connect(place);
  const { OpenWorkflow } = await peer<OpenWorkflowPackage>("openworkflow");
  const client = new OpenWorkflow({ backend });
  const seen = { onStep: (): void => {}, ended: 0 };
  const workflow = client.defineWorkflow<ReturnType<typeof payload>>({ name: "docs" }, async ({ input, step }) => {
    const { size } = await step.run({ name: "parse" }, async () => (seen.onStep(), { size: input.url.length }));
    const { count } = await step.run({ name: "count" }, async () => (seen.onStep(), { count: size }));
    const indexed = await step.run({ name: "index" }, async () => (seen.onStep(), { indexed: count }));
    seen.ended++;
    return indexed;
  });
  const worker = client.newWorker({ concurrency: CONCURRENCY });
  return {
    pipeline: async (targets, counted) => {
      seen.onStep = counted;
      const last: { result(): Promise<unknown> }[] = [];
      for (let i = 0; i < targets; i++) {
        last.push(await workflow.run(payload(i)));
        if (last.length > CONCURRENCY) last.shift();
      }
      await worker.start();
      while (seen.ended < targets) await new Promise((resolve) => setTimeout(resolve, 5));
      // Each asks the database until it has ended.
      await Promise.all(last.map((run) => run.result()));
    },
    close: async () => {
      await worker.stop();
      await backend.stop();
    },
  };
}
