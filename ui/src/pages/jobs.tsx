import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { JOB_STATES } from "../../../src/core/jobs/job.ts";
import { mayOperate } from "../action.tsx";
import { ApiError, apiPath } from "../api.ts";
import { count, duration, quoted } from "../format.ts";
import { now, timedRead, useBeat } from "../live.ts";
import type { Job, Page } from "../model.ts";
import { Badge, Command, Empty, Failed, FilterText, Icon, Loading, PageHead, Select, Time } from "../parts.tsx";
import { address, hrefOf, setQuery } from "../router.ts";
import { Rows } from "../rows.tsx";
import { overview } from "../samples.ts";

const PAGE = 100;
/** More rows than this are not read again after each commit. */
const MAX_LIVE = 500;
const HEAD = ["State", "Job", "Queue", "Attempts", "Created", "Time"];

interface Filters {
  state?: string;
  queue?: string;
  name?: string;
}

export function JobsPage() {
  const { query } = address.value;
  const filters: Filters = { state: query["state"] ?? "", queue: query["queue"] ?? "", name: query["name"] ?? "" };
  const list = useJobs(JSON.stringify(filters));
  const queues = overview.value.data?.queues.map(({ name }) => name) ?? [];
  const names = [...new Set([...queues, ...(filters.queue ? [filters.queue] : [])])];
  const isFiltered = Object.values(filters).some((value) => value !== "");
  return (
    <div class="full">
      <PageHead
        title="Jobs"
        note={<Command text={commandOf(filters)} />}
        actions={
          mayOperate.value ? (
            <a class="button primary" href={hrefOf("enqueue", { name: filters.name, queue: filters.queue })}>
              <Icon name="plus" /> Enqueue
            </a>
          ) : undefined
        }
      />
      <search class="filters">
        <Select
          label="State"
          value={filters.state ?? ""}
          options={[["", "All states"], ...JOB_STATES.map((state) => [state, stateText(state)] as const)]}
          onChange={(state) => setQuery({ state })}
        />
        <Select
          label="Queue"
          value={filters.queue ?? ""}
          options={[["", "All queues"], ...names.map((name) => [name, name] as const)]}
          onChange={(queue) => setQuery({ queue })}
        />
        <FilterText label="Name" value={filters.name ?? ""} onChange={(name) => setQuery({ name })} />
        {isFiltered ? (
          <a class="button quiet" href={hrefOf("jobs")}>
            <Icon name="close" /> Clear
          </a>
        ) : null}
      </search>
      {list.items === null ? (
        list.error === null ? (
          <Loading lines={12} />
        ) : (
          <Failed error={list.error} />
        )
      ) : list.items.length === 0 ? (
        <Empty title={isFiltered ? "No job matches these filters" : "No jobs yet"}>
          {isFiltered ? <a href={hrefOf("jobs")}>Show all jobs</a> : <Command text={`holdfast enqueue NAME '{"input":1}'`} />}
        </Empty>
      ) : (
        <Rows
          name="jobs"
          label="Jobs"
          items={list.items}
          keyOf={({ id }) => id}
          head={HEAD}
          cells={cellsOf}
          onEnd={list.more}
          foot={
            <div class="rows-foot muted" role="status">
              {count(list.items.length)} {list.items.length === 1 ? "job" : "jobs"}
              {list.hasMore ? " read so far, scroll for more" : ""}
              {list.items.length > MAX_LIVE ? " · not live beyond " + count(MAX_LIVE) + " rows" : ""}
            </div>
          }
        />
      )}
    </div>
  );

  function stateText(state: (typeof JOB_STATES)[number]): string {
    const counted = filters.queue || filters.name ? undefined : overview.value.data?.counts[state];
    return counted === undefined ? state : `${state} (${count(counted)})`;
  }
}

function cellsOf(job: Job) {
  const { id, name, key, queue, state, attempt, crashes, createdAt, error, progress } = job;
  return [
    <Badge state={state} />,
    <div class="job-cell">
      <a class="row-link" href={hrefOf("jobs", {}, id)}>
        {name}
      </a>
      <span class="muted clip">
        {state === "running" && progress !== undefined
          ? `${Math.round(progress.fraction * 100)} % ${progress.message ?? ""}`
          : error === undefined
            ? (key ?? id)
            : `${error.code ?? error.name}: ${error.message}`}
      </span>
    </div>,
    <span class="clip">{queue}</span>,
    <span>
      {count(attempt)}×{crashes === 0 ? null : <span class="muted">, {count(crashes)} crashed</span>}
    </span>,
    <Time at={createdAt} />,
    <span>{timeOf(job)}</span>,
  ];
}

/** How long it runs or ran, or when it is due. */
function timeOf({ state, startedAt, finishedAt, runAt }: Job) {
  if (state === "running" && startedAt !== undefined) return duration(Math.max(0, now.value - startedAt));
  if (finishedAt !== undefined && startedAt !== undefined) return duration(finishedAt - startedAt);
  if (state === "pending" && runAt > now.value) return <Time at={runAt} />;
  return <span class="muted">–</span>;
}

function commandOf({ state, queue, name }: Filters): string {
  const flags = [...(state ? ["--state", state] : []), ...(queue ? ["--queue", queue] : []), ...(name ? ["--name", name] : [])];
  return ["holdfast jobs list", ...flags.map(quoted)].join(" ");
}

interface JobList {
  items: Job[] | null;
  error: ApiError | null;
  hasMore: boolean;
  more: () => void;
}

/** Pages of jobs, one behind the other. A commit makes it read as many rows again as it shows. */
function useJobs(filters: string): JobList {
  const [list, setList] = useState<Omit<JobList, "more"> & { next?: string | undefined }>({
    items: null,
    error: null,
    hasMore: false,
  });
  const current = useRef(list);
  current.current = list;
  const reading = useRef<AbortController | null>(null);
  const load = useCallback(
    async (after: string | undefined, limit: number) => {
      const abort = new AbortController();
      reading.current = abort;
      try {
        const query = { ...(JSON.parse(filters) as Filters), limit: String(limit), after };
        const page = await timedRead<Page<Job>>(apiPath("jobs", query), abort.signal);
        const before = after === undefined ? [] : (current.current.items ?? []);
        setList({ items: [...before, ...page.items], error: null, hasMore: page.next !== undefined, next: page.next });
      } catch (error) {
        if (error instanceof ApiError && !abort.signal.aborted) setList({ ...current.current, error });
      }
      if (reading.current === abort) reading.current = null;
    },
    [filters],
  );
  useEffect(() => {
    setList({ items: null, error: null, hasMore: false });
    void load(undefined, PAGE);
    return () => reading.current?.abort();
  }, [load]);
  useBeat(
    useCallback(() => {
      const shown = current.current.items?.length ?? 0;
      if (reading.current === null && shown <= MAX_LIVE) void load(undefined, Math.max(PAGE, shown));
    }, [load]),
  );
  const more = () => {
    if (reading.current === null && list.next !== undefined) void load(list.next, PAGE);
  };
  return { ...list, more };
}
