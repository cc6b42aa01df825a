import { checkJobFilter, type JobFilter, type JobSelection } from "../core/jobs/filter.ts";
import { FINISHED_STATES, type FinishedState, type Job, JOB_MOVES, type JobState } from "../core/jobs/job.ts";
import { invalidOption } from "../core/text/options.ts";
import type { Store } from "../store/store.ts";

export type MatchingAction = "retry" | "cancel" | "remove";

/** Result of an action on all matching jobs: how many matched in a state that allows it, and how many of them it changed. */
export interface MatchingResult {
  matched: number;
  changed: number;
}

const ACTIONS: Record<MatchingAction, { call: string; done: string; states: readonly JobState[] }> = {
  retry: { call: "retryAll", done: "retried", states: JOB_MOVES.retry.from },
  cancel: { call: "cancelAll", done: "cancelled", states: JOB_MOVES.cancel.from },
  remove: { call: "removeAll", done: "removed", states: FINISHED_STATES },
};

/** Jobs per transaction. A claim waits for at most one such transaction. */
const BATCH_SIZE = 50;

/** Changes matching jobs from the newest down, so that it meets each job once and no later ones. Call it again after a crash. */
export async function changeMatching(store: Store, action: MatchingAction, filter: JobFilter): Promise<MatchingResult> {
  const result: MatchingResult = { matched: 0, changed: 0 };
  for await (const jobs of matching(store, selectionOf(action, filter), BATCH_SIZE)) {
    result.matched += jobs.length;
    result.changed += await CHANGES[action](store, jobs);
  }
  const { matched, changed } = result;
  if (changed > 0)
    await store.audit.record({ action: "jobs.matched", name: action, after: { matched, changed, filter: audited(filter) } });
  return result;
}

export async function countMatching(store: Store, action: MatchingAction, filter: JobFilter): Promise<number> {
  let count = 0;
  for await (const jobs of matching(store, selectionOf(action, filter), 1_000)) count += jobs.length;
  return count;
}

async function* matching(store: Store, selection: JobSelection, limit: number): AsyncGenerator<Job[]> {
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({ ...selection, order: "newest", limit, ...(after === undefined ? {} : { after }) });
    if (page.items.length > 0) yield page.items;
    after = page.next;
    if (after === undefined) return;
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const CHANGES: Record<MatchingAction, (store: Store, jobs: readonly Job[]) => Promise<number>> = {
  // Calls of one turn share a commit. A job stays as it is if another job has its key by now.
  retry: (store, jobs) => countTrue(jobs.map(({ id }) => store.retry(id))),
  cancel: (store, jobs) => countTrue(jobs.map(({ id }) => store.cancel(id))),
  remove: async (store, jobs) => {
    const removed = [...Map.groupBy(jobs, ({ state }) => state as FinishedState)].map(([state, of]) =>
      store.prune({ state, ids: of.map(({ id }) => id), limit: of.length }),
    );
    return (await Promise.all(removed)).reduce((sum, { removed }) => sum + removed, 0);
  },
};

async function countTrue(answers: readonly Promise<boolean | "key-taken">[]): Promise<number> {
  return (await Promise.all(answers)).filter((answer) => answer === true).length;
}

function selectionOf(action: MatchingAction, filter: JobFilter): JobSelection {
  const { call, done, states } = ACTIONS[action];
  const selection = checkJobFilter(filter, `jobs.${call}`);
  if (selection.state === undefined) return { ...selection, state: states };
  const asked = [selection.state].flat();
  const allowed = asked.filter((state) => states.includes(state));
  if (allowed.length > 0 || asked.length === 0) return { ...selection, state: allowed };
  throw invalidOption(
    `Jobs that are ${asked.join(" or ")} cannot be ${done}.`,
    `Leave \`state\` out, or give some of: ${states.join(", ")}.`,
  );
}

/** Keeps only the paths of the input, because the audit must not contain inputs. */
function audited({ input, ...filter }: JobFilter): object {
  return input === undefined ? filter : { ...filter, input: Object.keys(input) };
}
