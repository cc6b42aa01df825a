import type { LimitUsage } from "../../../src/store/queues.ts";
import { type Action, ask, mayOperate } from "../action.tsx";
import { apiPath, write } from "../api.ts";
import { count, duration, lastWords, plural } from "../format.ts";
import { now, useRead } from "../live.ts";
import type { Queue } from "../model.ts";
import { Badge, Bar, Command, Empty, Loaded, PageHead, Panel, Table } from "../parts.tsx";
import { hrefOf } from "../router.ts";

const HEAD = ["Queue", "State", "Waiting", "Pending", "Oldest", "Running", "Succeeded", "Failed", "Quarantined"];
const SHOWN = ["running", "succeeded", "failed", "quarantined"] as const;

export function QueuesPage() {
  const reading = useRead<{ items: Queue[] }>(apiPath("queues"));
  return (
    <>
      <PageHead title="Queues" note={<Command text="holdfast queues list" />} />
      <Loaded of={reading} lines={6}>
        {({ items }) => (
          <Panel title="All queues" note={plural(items.length, "queue")} flush>
            {items.length === 0 ? (
              <Empty title="No queues yet">A queue exists once a job was put into it.</Empty>
            ) : (
              <Table label="Queues" head={mayOperate.value ? [...HEAD, <span class="visually-hidden">Actions</span>] : HEAD}>
                {items.map((queue) => (
                  <Row queue={queue} key={queue.name} />
                ))}
              </Table>
            )}
          </Panel>
        )}
      </Loaded>
      <Limits />
    </>
  );
}

/** Only those that are in use: most databases have none. */
function Limits() {
  const items = useRead<{ items: LimitUsage[] }>(apiPath("limits")).data?.items ?? [];
  if (items.length === 0) return null;
  return (
    <Panel title="Limits in use" note="those that most jobs wait for first" flush>
      <Table label="Limits" head={["Key", "Job", "Queue", "At once", "Rate", "Waiting"]}>
        {items.map(({ queue, job, key, concurrency, starts, per, running, waiting }) => (
          <tr key={`${queue} ${job} ${key}`}>
            <th scope="row" title={key}>
              {key === "" ? "all" : key}
            </th>
            <td class="name" title={job}>
              {job}
            </td>
            <td class="name" title={queue}>
              {queue}
            </td>
            <td>
              {concurrency === null ? (
                plural(running, "job")
              ) : (
                <div class="depth">
                  <span>
                    {count(running)} of {plural(concurrency, "job")}
                  </span>
                  <Bar
                    share={running / concurrency}
                    label={`${count(running)} of ${plural(concurrency, "job")} run`}
                    tone={running >= concurrency ? "amber" : "teal"}
                  />
                </div>
              )}
            </td>
            <td>
              {starts === null || per === null ? <span class="muted">–</span> : `${plural(starts, "start")} in ${duration(per)}`}
            </td>
            <td>{plural(waiting, "job")}</td>
          </tr>
        ))}
      </Table>
    </Panel>
  );
}

function Row({ queue: { name, paused, counts, oldestAt } }: { queue: Queue }) {
  return (
    <tr>
      <th scope="row" title={name}>
        <a class="row-link" href={hrefOf("jobs", { queue: name })}>
          {name}
        </a>
      </th>
      <td>
        <Badge state={paused ? "paused" : "active"} />
      </td>
      <Jobs queue={name} state="waiting" n={counts.waiting} />
      <Jobs queue={name} state="pending" n={counts.pending} />
      <td>{oldestAt === undefined ? <span class="muted">–</span> : duration(Math.max(0, now.value - oldestAt))}</td>
      {SHOWN.map((state) => (
        <Jobs queue={name} state={state} n={counts[state]} key={state} />
      ))}
      {mayOperate.value ? (
        <td>
          <div class="row-actions">
            <button type="button" class="button" onClick={() => ask(paused ? resume(name) : pause(name))}>
              {paused ? "Resume" : "Pause"}
              <span class="visually-hidden"> {name}</span>
            </button>
          </div>
        </td>
      ) : null}
    </tr>
  );
}

function Jobs({ queue, state, n }: { queue: string; state: string; n: number }) {
  return (
    <td>
      {n === 0 ? (
        <span class="muted">0 jobs</span>
      ) : (
        <a href={hrefOf("jobs", { queue, state })} aria-label={`${plural(n, "job")} ${state} in ${queue}`}>
          {plural(n, "job")}
        </a>
      )}
    </td>
  );
}

function pause(name: string): Action {
  return {
    title: `Pause ${name}?`,
    body: <p>Its jobs wait until the queue is resumed. Jobs that run finish.</p>,
    verb: "Pause the queue",
    command: () => `holdfast queues pause ${lastWords(name)}`,
    run: async () => {
      await write(`queues/${encodeURIComponent(name)}/pause`);
      return `${name} is paused.`;
    },
  };
}

function resume(name: string): Action {
  return {
    title: `Resume ${name}?`,
    body: <p>Workers claim its jobs again.</p>,
    verb: "Resume the queue",
    command: () => `holdfast queues resume ${lastWords(name)}`,
    run: async () => {
      await write(`queues/${encodeURIComponent(name)}/resume`);
      return `${name} is active.`;
    },
  };
}
