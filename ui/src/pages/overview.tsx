import { Bar, Badge, Command, Empty, Hint, Icon, Loaded, PageHead, Panel, Table, Time } from "../parts.tsx";
import { bytes, count, duration, plural, short } from "../format.ts";
import { Chart } from "../chart.tsx";
import { now, useRead } from "../live.ts";
import { apiPath } from "../api.ts";
import type { Alarm, Overview, WorkerProcess } from "../model.ts";
import { address, hrefOf, setQuery } from "../router.ts";
import { chartsOf, overview, percentileText, type Range, RANGES, sparkline, type Stats } from "../stats.ts";
import { JOB_STATES } from "../../../src/core/jobs/job.ts";
import { BudgetBar } from "./budget.tsx";

const RATES = [
  { label: "succeeded", tone: "green" },
  { label: "failed", tone: "red" },
  { label: "retried", tone: "amber" },
];
const TIMES = [
  { label: "run time p50", tone: "teal" },
  { label: "run time p95", tone: "blue" },
  { label: "wait time p95", tone: "violet" },
];
const TIME_STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500].concat(
  [1, 2, 5, 15, 30, 60, 300, 900, 3_600, 7_200].map((seconds) => seconds * 1_000),
);
/** Workers add their counts once a minute. */
const STATS_MS = 15_000;

export function OverviewPage() {
  return (
    <Loaded of={overview.value} lines={10}>
      {(data) => <Seen data={data} />}
    </Loaded>
  );
}

function Seen({ data }: { data: Overview }) {
  const { counts, queues, processes, builds, alarms, database, wal, unreadable } = data;
  const range = RANGE_NAMES.find((one) => one === address.value.query["range"]) ?? "1h";
  const { minutes, step } = RANGES[range];
  const asked = { minutes: String(Math.min(minutes + step, RANGES["7d"].minutes)), step: String(step) };
  const { data: stats } = useRead<Stats>(apiPath("stats", asked), STATS_MS);
  const { data: lastHour } = useRead<Stats>(apiPath("stats", { minutes: "61", step: "1" }), STATS_MS);
  return (
    <>
      <PageHead
        title="Overview"
        note={
          <>
            <span class="mono" title={database.path}>
              {database.path.split(/[/\\]/).at(-1)}
            </span>{" "}
            · durable through a {database.durability === "power" ? "power cut" : "crash"}
            {wal === null ? null : ` · log ${bytes(wal.bytes)}`}
          </>
        }
      />
      {unreadable.length === 0 ? null : (
        <div class="callout tone-red" role="alert">
          <strong>Damaged.</strong> These parts cannot be read: {unreadable.join(", ")}.
        </div>
      )}
      <Alarms alarms={alarms} />
      <ul class="tiles" aria-label="Jobs by state">
        {JOB_STATES.map((state) => (
          <li key={state}>
            <a class={`tile ${counts[state] === 0 ? "none" : ""}`} href={hrefOf("jobs", { state })}>
              <Badge state={state} />
              <span class="figure" title={count(counts[state])}>
                {short(counts[state])}
              </span>
              <span class="muted">{counts[state] === 1 ? "job" : "jobs"}</span>
            </a>
          </li>
        ))}
      </ul>
      {stats === null ? null : <Activity stats={stats} range={range} at={data.at} />}
      <Panel title="Queues" note={plural(queues.length, "queue")} flush>
        {queues.length === 0 ? (
          <Empty title="No jobs yet">
            <Command text={`holdfast enqueue NAME '{"input":1}'`} />
          </Empty>
        ) : (
          <Queues data={data} stats={lastHour} />
        )}
      </Panel>
      <div class="columns">
        <Panel title="Workers" note={plural(processes.length, "process", "processes")} flush>
          {processes.length === 0 ? (
            <Empty title="No process has this database open">
              <Command text="holdfast work FILES…" />
            </Empty>
          ) : (
            <ul class="list">
              {processes.map((one) => (
                <Process key={`${one.host} ${one.pid} ${one.startedAt}`} one={one} />
              ))}
            </ul>
          )}
        </Panel>
        <Panel title="Open builds" note={plural(builds.length, "build")} flush>
          {builds.length === 0 ? (
            <Empty title="No build is open">
              <Command text="holdfast run" />
            </Empty>
          ) : (
            <ul class="list">
              {builds.map((build) => (
                <li key={build.id}>
                  <div class="line">
                    <a class="row-link strong" href={hrefOf("builds", {}, build.id)}>
                      {build.pipeline}
                    </a>
                    <Badge state={build.state} />
                  </div>
                  <BudgetBar spent={build.spent} budget={build.budget} />
                  <div class="line muted">
                    <span>
                      {plural(build.left, "work item")} left{build.failed === 0 ? "" : `, ${count(build.failed)} failed`}
                    </span>
                    <span>
                      started <Time at={build.createdAt} />
                    </span>
                  </div>
                </li>
              ))}
            </ul>
          )}
        </Panel>
      </div>
    </>
  );
}

const RANGE_NAMES = Object.keys(RANGES) as Range[];

function Activity({ stats, range, at }: { stats: Stats; range: Range; at: number }) {
  const charts = chartsOf(stats, range, at);
  const { step } = RANGES[range];
  const lastText = step === 1 ? "last full minute" : `last full ${step} minutes`;
  return (
    <div class="columns">
      <Panel
        title="Throughput"
        note="jobs a minute"
        actions={
          <div class="segments" role="group" aria-label="How far back">
            {RANGE_NAMES.map((one) => (
              <button
                type="button"
                key={one}
                aria-pressed={one === range}
                onClick={() => setQuery({ range: one === "1h" ? "" : one })}
              >
                <span class="visually-hidden">The last </span>
                {RANGES[one].text}
              </button>
            ))}
          </div>
        }
      >
        <Chart
          series={RATES}
          data={charts.rates}
          format={(n) => `${short(n)}/min`}
          label="Jobs that ended a minute"
          lastText={lastText}
        />
      </Panel>
      <Panel title="Latency" note="time to run, time to start">
        <Chart
          series={TIMES}
          data={charts.times}
          format={(ms) => percentileText(ms, stats.boundsMs)}
          axisFormat={duration}
          axisSteps={TIME_STEPS_MS}
          label="How long jobs ran and waited"
          lastText={lastText}
        />
      </Panel>
    </div>
  );
}

const LINKS: Record<string, string> = {
  FAILED: hrefOf("jobs", { state: "failed" }),
  QUARANTINED: hrefOf("jobs", { state: "quarantined" }),
  WAITING_LONG: hrefOf("jobs", { state: "pending" }),
  NO_WORKER: hrefOf("jobs", { state: "pending" }),
  NAME_NOT_WORKED: hrefOf("jobs", { state: "pending" }),
  BUILD_PAUSED: hrefOf("builds", { state: "BUDGET_PAUSE" }),
  BUILD_CRASHED: hrefOf("builds"),
};

function Alarms({ alarms }: { alarms: Alarm[] }) {
  if (alarms.length === 0) return null;
  return (
    <section class="panel" aria-label="Alarms">
      <ul class="list alarms">
        {alarms.map(({ code, grave, message, hint }) => (
          <li key={message} class={grave ? "tone-red" : "tone-amber"}>
            <Icon name="alert" />
            <div class="alarm-text">
              <span class="visually-hidden">{grave ? "Grave: " : "Warning: "}</span>
              <a class="strong" href={LINKS[code] ?? hrefOf("recovery")}>
                {message.slice(0, 1).toUpperCase() + message.slice(1)}
              </a>
            </div>
            {hint.startsWith("holdfast ") ? (
              <Command text={hint} />
            ) : (
              <span class="muted">
                <Hint text={hint} />
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Queues({ data: { queues, at }, stats }: { data: Overview; stats: Stats | null }) {
  const most = Math.max(1, ...queues.map(({ counts }) => counts.pending));
  return (
    <Table label="Queues" head={["Queue", "State", "Pending", "Oldest", "Running", "Last hour", "Last minute", "Failed"]}>
      {queues.map(({ name, paused, counts, oldestAt, lastMinute: ended }) => (
        <tr key={name}>
          <th scope="row" title={name}>
            <a class="row-link" href={hrefOf("jobs", { queue: name })}>
              {name}
            </a>
          </th>
          <td>
            <Badge state={paused ? "paused" : "active"} />
          </td>
          <td>
            <div class="depth">
              <span>{plural(counts.pending, "job")}</span>
              <Bar share={counts.pending / most} label={`${count(counts.pending)} of at most ${count(most)}`} tone="blue" />
            </div>
          </td>
          <td>{oldestAt === undefined ? <span class="muted">–</span> : duration(Math.max(0, now.value - oldestAt))}</td>
          <td>{plural(counts.running, "job")}</td>
          <td>
            <Sparkline path={stats === null ? null : sparkline(stats, name, at)} />
          </td>
          <td>{plural(ended.succeeded + ended.failed + ended.quarantined, "job")}</td>
          <td>
            {counts.failed === 0 ? (
              <span class="muted">0 jobs</span>
            ) : (
              <a href={hrefOf("jobs", { queue: name, state: "failed" })}>{plural(counts.failed, "job")}</a>
            )}
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Sparkline({ path }: { path: string | null }) {
  if (path === null) return <span class="muted">–</span>;
  return (
    <svg class="sparkline" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="Jobs that ended a minute">
      <path d={`${path}L100 24L0 24Z`} />
      <path d={path} />
    </svg>
  );
}

function Process({ one }: { one: WorkerProcess }) {
  const names = [...new Set(one.works.map(({ name }) => name))];
  return (
    <li>
      <div class="line">
        <span class="strong mono clip" title={one.program}>
          {one.program}
        </span>
        <Badge state={one.stopping ? "stopping" : one.life} />
      </div>
      <div class="line muted">
        <span>
          pid {one.pid} on {one.host}
        </span>
        <span>
          {plural(one.running, "job")} running · started <Time at={one.startedAt} />
        </span>
      </div>
      {names.length === 0 ? null : <div class="muted clip">works {names.join(", ")}</div>}
    </li>
  );
}
