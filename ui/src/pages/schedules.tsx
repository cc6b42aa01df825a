import { type Action, ask, mayOperate } from "../action.tsx";
import { apiPath, write } from "../api.ts";
import { absolute, lastWords, plural } from "../format.ts";
import { useRead } from "../live.ts";
import type { Schedule } from "../model.ts";
import { Badge, Command, Empty, Loaded, PageHead, Panel, Table, Time } from "../parts.tsx";
import { hrefOf } from "../router.ts";
import { cronInWords } from "../cron.ts";

const HEAD = ["Schedule", "State", "When", "Last run", "Next run"];

export function SchedulesPage() {
  const reading = useRead<{ items: Schedule[] }>(apiPath("schedules"));
  return (
    <>
      <PageHead title="Schedules" note={<Command text="holdfast schedules list" />} />
      <Loaded of={reading} lines={6}>
        {({ items }) => (
          <Panel title="All schedules" note={plural(items.length, "schedule")} flush>
            {items.length === 0 ? (
              <Empty title="No schedules yet">
                A program makes one with <code>hf.schedule(job, {"{ cron, input }"})</code>.
              </Empty>
            ) : (
              <Table label="Schedules" head={mayOperate.value ? [...HEAD, <span class="visually-hidden">Actions</span>] : HEAD}>
                {items.map((schedule) => (
                  <Row one={schedule} key={schedule.key} />
                ))}
              </Table>
            )}
          </Panel>
        )}
      </Loaded>
    </>
  );
}

function Row({ one }: { one: Schedule }) {
  const { key, job, cron, timezone, paused, lastAt, nextAt, missed, overlap, nextRuns } = one;
  const words = cronInWords(cron);
  return (
    <tr>
      <th scope="row" title={key}>
        {key}
        <div>
          <a class="row-link" href={hrefOf("jobs", { name: job })}>
            {job}
          </a>
        </div>
      </th>
      <td>
        <Badge state={paused ? "paused" : "active"} />
      </td>
      <td>
        {words === null ? null : <div>{words}</div>}
        <span class="muted">
          <code>{cron}</code> {timezone}
        </span>
        <div class="muted">{MISSED[missed]}</div>
        {overlap ? null : <div class="muted">Waits for its last job</div>}
      </td>
      <td>
        <Time at={lastAt} none="never" />
      </td>
      <td>{paused ? <span class="muted">when resumed</span> : <NextRuns nextAt={nextAt} runs={nextRuns} />}</td>
      {mayOperate.value ? (
        <td>
          <div class="row-actions">
            <button type="button" class="button" onClick={() => ask(trigger(one))}>
              Run now<span class="visually-hidden"> {key}</span>
            </button>
            <button type="button" class="button" onClick={() => ask(paused ? resume(one) : pause(one))}>
              {paused ? "Resume" : "Pause"}
              <span class="visually-hidden"> {key}</span>
            </button>
            <button type="button" class="button danger" onClick={() => ask(remove(one))}>
              Remove<span class="visually-hidden"> {key}</span>
            </button>
          </div>
        </td>
      ) : null}
    </tr>
  );
}

const MISSED: Record<Schedule["missed"], string> = {
  skip: "Missed runs: none follows",
  once: "Missed runs: one follows",
  all: "Missed runs: all follow",
};

function NextRuns({ nextAt, runs }: { nextAt: number; runs: readonly number[] }) {
  return (
    <details class="next-runs">
      <summary>
        <Time at={nextAt} />
      </summary>
      <ol>
        {runs.map((at) => (
          <li key={at}>{absolute(at)}</li>
        ))}
      </ol>
    </details>
  );
}

const pathOf = (key: string) => `schedules/${encodeURIComponent(key)}`;

function trigger({ key, job }: Schedule): Action {
  return {
    title: `Run ${key} now?`,
    body: <p>A {job} job is enqueued now; the next run stays where it is.</p>,
    verb: "Run now",
    command: () => `holdfast schedules trigger ${lastWords(key)}`,
    run: async () => {
      const { id, duplicate } = await write<{ id: string; duplicate: boolean }>(`${pathOf(key)}/trigger`);
      return duplicate ? `An unfinished job of it exists: ${id}.` : `Job ${id} is enqueued.`;
    },
  };
}

function pause({ key }: Schedule): Action {
  return {
    title: `Pause ${key}?`,
    body: <p>No job is enqueued until the schedule is resumed.</p>,
    verb: "Pause the schedule",
    command: () => `holdfast schedules pause ${lastWords(key)}`,
    run: async () => {
      await write(`${pathOf(key)}/pause`);
      return `${key} is paused.`;
    },
  };
}

function resume({ key }: Schedule): Action {
  return {
    title: `Resume ${key}?`,
    body: <p>It continues with its next run. Runs that were missed while it was paused are not made up for.</p>,
    verb: "Resume the schedule",
    command: () => `holdfast schedules resume ${lastWords(key)}`,
    run: async () => {
      await write(`${pathOf(key)}/resume`);
      return `${key} is active.`;
    },
  };
}

function remove({ key }: Schedule): Action {
  return {
    title: `Remove ${key}?`,
    body: <p>Its jobs stay. A program that declares the schedule makes it again.</p>,
    verb: "Remove the schedule",
    isDangerous: true,
    command: () => `holdfast schedules remove ${lastWords(key)}`,
    run: async () => {
      const { changed } = await write<{ changed: boolean }>(pathOf(key), undefined, "DELETE");
      return changed ? `${key} is removed.` : `${key} had been removed.`;
    },
  };
}
