import postgres from "postgres";
import type { Contender, Payload } from "./contender.ts";

/** Drained jobs a commit: fewer cost more commits, more cost nothing less. */
const BATCH = 500;
const LOOPS = 4;
/** For a hundred callers at once: 4 connections 5k a second, 10 6k, 20 9k, 50 6k. */
const CONNECTIONS = 20;

/**
 * The limit: what PostgreSQL does here for the least table that could be a queue — a key that is never reused, a state,
 * one partial index, fenced completion — and nothing of a job engine around it.
 */
export async function open(url: string): Promise<Contender> {
  // Each statement is written for its index; with these off, no statistics make the planner read the whole table.
  const connection = { enable_seqscan: "off", enable_hashjoin: "off", enable_mergejoin: "off" };
  const sql = postgres(url, { max: CONNECTIONS, connection, onnotice: () => {} });
  await sql.unsafe(`
    create table jobs (
      key bigint generated always as identity primary key, state text not null, priority integer not null,
      fence bigint not null default 0, expires_at bigint, input text, output text);
    create index ready on jobs (priority desc, key) where state = 'pending'`);
  const insert = (jobs: Payload[]) => sql`
    insert into jobs (state, priority, input)
    select 'pending', 0, input from unnest(${jobs.map((job) => JSON.stringify(job))}::text[]) as job (input)`;
  const claim = () => sql`
    update jobs set state = 'running', fence = fence + 1, expires_at = ${Date.now() + 30_000}::bigint
    where key = any(array(
      select key from jobs where state = 'pending' order by priority desc, key limit ${BATCH} for update skip locked))
    returning key, fence, input`;
  // When the table was analysed nothing was running, so `state = 'running'` looks like the best place to begin: with a
  // walk over all jobs. Wrapped, it says nothing about itself, and each job is found by its key.
  const complete = (held: postgres.RowList<postgres.Row[]>) => sql`
    update jobs set state = 'succeeded', output = 'null'
    from unnest(${held.map(({ key }) => key)}::bigint[], ${held.map(({ fence }) => fence)}::bigint[]) as held (key, fence)
    where jobs.key = held.key and jobs.fence = held.fence and coalesce(jobs.state, '') = 'running'`;

  return {
    bulk: { batch: 1_000, atOnce: 4 },
    enqueue: (job) => insert([job]),
    enqueueMany: insert,
    drain: async (jobs) => {
      let done = 0;
      const drain = async (): Promise<void> => {
        for (let held = await claim(); held.length > 0; held = await claim()) {
          const { count } = await complete(held);
          done += count;
        }
      };
      await Promise.all(Array.from({ length: LOOPS }, drain));
      if (done !== jobs) throw new Error(`${done} jobs were completed, of ${jobs}.`);
    },
    listen: () => Promise.reject(new Error("There is no worker in raw SQL.")),
    left: async () => Number((await sql`select count(*) as n from jobs where state <> 'succeeded'`)[0]?.["n"]),
    close: () => sql.end(),
  };
}
