import { type Explanation, explain } from "../core/jobs/explain.ts";
import { isProvenDead } from "../core/jobs/lease.ts";
import type { Store } from "../store/store.ts";
import { bootId } from "./host.ts";

/** Why jobs, or the oldest pending jobs of queues, do not run. Null: there is no such job. */
export async function explainJobs(
  { queries, processes }: Pick<Store, "queries" | "processes">,
  asked: readonly ({ id: string } | { queue: string })[],
): Promise<({ id: string; createdAt: number; explanation: Explanation } | null)[]> {
  if (asked.length === 0) return [];
  const all = await Promise.all(asked.map((of) => queries.facts(of)));
  const { self, others } = await processes.probe(bootId());
  // A process on another host may be alive.
  const live = [self, ...others.filter(({ life }) => !isProvenDead(life)).map(({ process }) => process)];
  const works = live.flatMap((process) => process?.works ?? []);
  return all.map((facts) => {
    if (facts === null) return null;
    const { id, name, createdAt } = facts.job;
    const worked = works.filter((work) => work.name === name).map(({ version }) => version);
    return { id, createdAt, explanation: explain(facts, worked) };
  });
}
