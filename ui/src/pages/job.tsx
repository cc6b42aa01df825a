import { JOB_STATES, mayMove } from "../../../src/core/jobs/job.ts";
import type { AttemptView, LogLine } from "../../../src/core/jobs/attempts.ts";
import { type Action, ask, mayOperate } from "../action.tsx";
import { apiPath, jobPath, write } from "../api.ts";
import { count, duration, lastWords, plural } from "../format.ts";
import { now, useRead } from "../live.ts";
import type { Job, JobState } from "../model.ts";
import { Badge, Bar, Command, CopyButton, Facts, Icon, Json, Loaded, PageHead, Panel, Table, Time, toneOf } from "../parts.tsx";
import { address, hrefOf } from "../router.ts";

export function JobPage() {
  const id = address.value.id ?? "";
  const reading = useRead<Job>(apiPath(jobPath(id)));
  return (
    <>
      <a class="back" href={hrefOf("jobs")}>
        <Icon name="back" /> Jobs
      </a>
      <Loaded of={reading} lines={10}>
        {(job) => <Shown job={job} />}
      </Loaded>
    </>
  );
}

function Shown({ job }: { job: Job }) {
  const { id, name, queue, state, error, input, output } = job;
  return (
    <>
      <PageHead
        title={
          <>
            {name} <Badge state={state} />
          </>
        }
        note={
          <span class="id">
            <span class="mono">{id}</span>
            <CopyButton text={id} what="the id" />
          </span>
        }
        actions={mayOperate.value ? <Actions job={job} /> : undefined}
      />
      <States state={state} />
      {state === "waiting" || state === "pending" ? <WhyNot id={id} /> : null}
      {job.progress === undefined || state !== "running" ? null : (
        <div class="budget">
          <Bar share={job.progress.fraction} label="Progress" />
          <span>
            {Math.round(job.progress.fraction * 100)} % {job.progress.message}
          </span>
        </div>
      )}
      {error === undefined ? null : (
        <Panel title="Error" note={<span class="mono">{error.code}</span>}>
          <p class="error-message">
            {error.name}: {error.message}
          </p>
          {error.stack === undefined || error.stack === "" ? null : (
            <pre tabIndex={0} aria-label="Stack of the error">
              {error.stack}
            </pre>
          )}
        </Panel>
      )}
      <Attempts id={id} />
      <div class="columns">
        <Panel title="Input">
          <Json value={input} label="the input" />
        </Panel>
        <Panel title="Output">
          {output === undefined ? (
            <p class="muted">{state === "succeeded" ? "No output." : "No output: the job has not succeeded."}</p>
          ) : (
            <Json value={output} label="the output" />
          )}
        </Panel>
      </div>
      <Panel title="Details">
        <Facts of={factsOf(job, queue)} />
      </Panel>
      <Command text={`holdfast jobs show ${lastWords(id)}`} />
    </>
  );
}

function factsOf(job: Job, queue: string): [string, preact.ComponentChildren][] {
  const { key, tags, attempt, crashes, priority, createdAt, runAt, startedAt, finishedAt, state } = job;
  const { worker, host, pid, leaseExpiresAt } = job;
  return [
    ["Queue", <a href={hrefOf("jobs", { queue })}>{queue}</a>],
    ...(key === undefined ? [] : ([["Key", <span class="mono">{key}</span>]] as [string, preact.ComponentChildren][])),
    ...(tags === undefined || tags.length === 0
      ? []
      : ([
          [
            "Tags",
            tags.map((tag) => (
              <a class="tag" href={hrefOf("jobs", { tag })} key={tag}>
                {tag}
              </a>
            )),
          ],
        ] as [string, preact.ComponentChildren][])),
    ["Attempts", `${plural(attempt, "attempt")}, ${plural(crashes, "crash", "crashes")}`],
    ["Priority", count(priority)],
    ["Created", <Time at={createdAt} />],
    ["Due", <Time at={runAt} />],
    ["Started", <Time at={startedAt} none="not yet" />],
    ["Finished", <Time at={finishedAt} none="not yet" />],
    [
      "Waited",
      startedAt === undefined
        ? "–"
        : duration(Math.max(0, startedAt - Math.max(createdAt, runAt > startedAt ? createdAt : runAt))),
    ],
    [
      "Ran for",
      startedAt === undefined || (finishedAt === undefined && state !== "running")
        ? "–"
        : duration(Math.max(0, (finishedAt ?? now.value) - startedAt)),
    ],
    ...(worker === undefined ? [] : ([["Worker", worker]] as [string, preact.ComponentChildren][])),
    ...(host === undefined ? [] : ([["Process", `pid ${pid} on ${host}`]] as [string, preact.ComponentChildren][])),
    ...(leaseExpiresAt === undefined
      ? []
      : ([["Lease ends", <Time at={leaseExpiresAt} />]] as [string, preact.ComponentChildren][])),
  ];
}

interface Explanation {
  message: string;
  until?: number;
  jobs?: string[];
}

/** Why the job does not run, and what it waits for. */
function WhyNot({ id }: { id: string }) {
  const { data } = useRead<Explanation>(apiPath(jobPath(id, "/explain")));
  if (data === null) return null;
  return (
    <section class="banner tone-blue" aria-label="Why it is not running">
      <div>
        <strong>Why is it not running?</strong>
        <p>
          {data.message}
          {data.until === undefined ? null : (
            <>
              {" "}
              (<Time at={data.until} />)
            </>
          )}
        </p>
        {data.jobs === undefined ? null : (
          <p>
            {data.jobs.map((one) => (
              <a class="mono" href={hrefOf("jobs", {}, one)} key={one}>
                {one}{" "}
              </a>
            ))}
          </p>
        )}
      </div>
      <Command text={`holdfast jobs why ${lastWords(id)}`} />
    </section>
  );
}

function endOf({ endedAt }: AttemptView): number {
  return endedAt ?? now.value;
}

/** Each attempt that was kept, on one time line. */
function Attempts({ id }: { id: string }) {
  const items = useRead<{ items: AttemptView[] }>(apiPath(jobPath(id, "/attempts"))).data?.items ?? [];
  if (items.length === 0) return null;
  const from = Math.min(...items.map(({ startedAt }) => startedAt));
  const span = Math.max(1, Math.max(...items.map(endOf)) - from);
  return (
    <Panel title="Attempts" note={`${plural(items.length, "attempt")} over ${duration(span)}`} flush>
      <Table label="Attempts" head={["Attempt", "Outcome", "Time line", "Started", "Took", "Worker"]}>
        {items.map((one) => (
          <tr key={one.startedAt}>
            <th scope="row">{count(one.attempt)}.</th>
            <td>
              <Badge state={one.outcome} />
            </td>
            <td class="stack-cell">
              <div
                class="line-track"
                role="img"
                aria-label={`${duration(one.startedAt - from)} after the first, for ${duration(endOf(one) - one.startedAt)}`}
              >
                <div
                  class={`tone-${toneOf(one.outcome)}`}
                  style={{
                    left: `${((one.startedAt - from) / span) * 100}%`,
                    width: `${(Math.max(0, endOf(one) - one.startedAt) / span) * 100}%`,
                  }}
                />
              </div>
              {one.error === undefined ? null : (
                <div class="error-text clip" title={one.error.message}>
                  {one.error.message}
                </div>
              )}
              <LogLines lines={one.log ?? []} />
            </td>
            <td>
              <Time at={one.startedAt} />
            </td>
            <td>{duration(Math.max(0, endOf(one) - one.startedAt))}</td>
            <td class="muted">{one.worker ?? (one.pid === undefined ? "–" : `pid ${one.pid} on ${one.host}`)}</td>
          </tr>
        ))}
      </Table>
    </Panel>
  );
}

/** What the handler has logged in an attempt. */
function LogLines({ lines }: { lines: readonly LogLine[] }) {
  if (lines.length === 0) return null;
  return (
    <details class="log-lines">
      <summary>{plural(lines.length, "log line")}</summary>
      <ol>
        {lines.map(({ at, level, message, data }, i) => (
          <li key={i} class={level === "info" ? "" : `log-${level}`}>
            <Time at={at} /> {level} {message}
            {data === undefined ? null : <code> {JSON.stringify(data)}</code>}
          </li>
        ))}
      </ol>
    </details>
  );
}

const WAY: readonly JobState[] = ["waiting", "pending", "running"];

/** Where the job is on its way, and how it may end. */
function States({ state }: { state: JobState }) {
  const ends = JOB_STATES.filter((one) => !WAY.includes(one));
  return (
    <div class="states" role="img" aria-label={`The job is ${state}.`}>
      {WAY.map((one) => (
        <>
          <Step one={one} here={one === state} />
          <span class="arrow">→</span>
        </>
      ))}
      {ends.map((one) => (
        <Step one={one} here={one === state} key={one} />
      ))}
    </div>
  );
}

function Step({ one, here }: { one: JobState; here: boolean }) {
  return (
    <span class={here ? "step here" : "step"}>
      <Badge state={one} />
    </span>
  );
}

function Actions({ job: { id, name, state } }: { job: Job }) {
  const retry: Action = {
    title: `Retry ${name}?`,
    body: <p>The job becomes pending again, with its counts of attempts and crashes at zero.</p>,
    verb: "Retry",
    command: () => `holdfast jobs retry ${lastWords(id)}`,
    run: async () =>
      (await write<{ changed: boolean }>(jobPath(id, "/retry"))).changed ? "The job is pending again." : "The job had moved on.",
  };
  const cancel: Action = {
    title: `Cancel ${name}?`,
    body: <p>The job ends as cancelled. A handler that runs gets the signal, and its result is discarded.</p>,
    verb: "Cancel the job",
    isDangerous: true,
    command: () => `holdfast jobs cancel ${lastWords(id)}`,
    run: async () =>
      (await write<{ changed: boolean }>(jobPath(id, "/cancel"))).changed ? "The job is cancelled." : "The job had ended.",
  };
  return (
    <>
      {mayMove("retry", state) ? (
        <button type="button" class="button primary" onClick={() => ask(retry)}>
          Retry
        </button>
      ) : null}
      {mayMove("cancel", state) ? (
        <button type="button" class="button danger" onClick={() => ask(cancel)}>
          Cancel
        </button>
      ) : null}
      <a class="button" href={hrefOf("enqueue", { from: id })}>
        Enqueue again
      </a>
    </>
  );
}
