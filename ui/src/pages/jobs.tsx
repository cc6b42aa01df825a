import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { parseInputPair } from "../../../src/core/jobs/filter.ts";
import { isFinished, JOB_STATES, mayMove } from "../../../src/core/jobs/job.ts";
import { ask, mayOperate } from "../action.tsx";
import { ApiError, apiPath, write } from "../api.ts";
import { count, duration, plural, quoted, short } from "../format.ts";
import { now, timedRead, useBeat } from "../live.ts";
import type { Job, JobState, Page } from "../model.ts";
import { Badge, Command, Empty, Failed, Field, FilterText, Icon, Loading, notify, PageHead, Select, Time } from "../parts.tsx";
import { address, hrefOf, setQuery } from "../router.ts";
import { Rows } from "../rows.tsx";
import { overview } from "../stats.ts";

const PAGE = 100;
/** More rows than this are not read again after each commit. */
const MAX_LIVE = 500;
/** A search reads this many slices before it asks whether to continue. */
const MAX_SLICES = 20;
const HEAD = ["State", "Job", "Queue", "Attempts", "Created", "Time"];

const TEXTS = ["name", "key", "tag", "error", "input"] as const;
const TIMES = ["createdAfter", "createdBefore", "finishedAfter", "finishedBefore"] as const;
const NAMES = ["state", "queue", ...TEXTS, ...TIMES] as const;
// The database has no index for these: it reads all jobs, slice by slice.
const SCANNED = ["tag", "error", "input", "finishedAfter", "finishedBefore"] as const;
/** As the API reads it from an address: times are milliseconds since 1970, `input` is `path=value`. */
export type Filters = Partial<Record<(typeof NAMES)[number], string>>;

export function JobsPage() {
  const { query } = address.value;
  const filters: Filters = Object.fromEntries(
    NAMES.flatMap((name) => (isUsable(name, query[name]) ? [[name, query[name]]] : [])),
  );
  const order = query["order"] === "oldest" ? "oldest" : "newest";
  const isScan = SCANNED.some((name) => filters[name] !== undefined);
  const list = useJobs(JSON.stringify({ ...filters, order }), !isScan);
  const queues = overview.value.data?.queues.map(({ name }) => name) ?? [];
  const names = [...new Set([...queues, ...(filters.queue === undefined ? [] : [filters.queue])])];
  const isFiltered = Object.keys(filters).length > 0;
  return (
    <div class="full">
      <PageHead
        title="Jobs"
        note={
          <Command
            text={["holdfast jobs list", ...flagsOf(filters), ...(order === "oldest" ? ["--order oldest"] : [])].join(" ")}
          />
        }
        actions={
          mayOperate.value ? (
            <>
              {isFiltered ? <AllMatching filters={filters} /> : null}
              <a class="button primary" href={hrefOf("enqueue", { name: filters.name, queue: filters.queue })}>
                <Icon name="plus" /> Enqueue
              </a>
            </>
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
        {TEXTS.map((name) => (
          <FilterText
            key={name}
            label={name === "input" ? "Input a.b=7" : capitalized(name)}
            value={filters[name] ?? ""}
            onChange={(text) => setQuery({ [name]: text })}
            {...(name === "input" ? { pattern: "[^=]+=.*" } : {})}
          />
        ))}
        <Select
          label="Order"
          value={order}
          options={[
            ["newest", "Newest first"],
            ["oldest", "Oldest first"],
          ]}
          onChange={(chosen) => setQuery({ order: chosen === "newest" ? "" : chosen })}
        />
        {isFiltered ? (
          <a class="button quiet" href={hrefOf("jobs")}>
            <Icon name="close" /> Clear
          </a>
        ) : null}
        <details open={TIMES.some((name) => filters[name] !== undefined)}>
          <summary class="button">Times</summary>
          <div class="form-grid">
            {TIMES.map((name) => (
              <Field label={capitalized(flagOf(name).replace("-", " "))} key={name}>
                <input
                  type="datetime-local"
                  value={localTime(filters[name])}
                  onChange={({ currentTarget: { value } }) =>
                    setQuery({ [name]: value === "" ? "" : String(new Date(value).getTime()) })
                  }
                />
              </Field>
            ))}
          </div>
        </details>
      </search>
      {list.items === null ? (
        list.error === null ? (
          <Loading lines={12} />
        ) : (
          <Failed error={list.error} />
        )
      ) : list.items.length === 0 ? (
        list.hasMore ? (
          <Empty title="No match so far">
            <button type="button" class="button" onClick={list.more}>
              Search further
            </button>
          </Empty>
        ) : (
          <Empty title={isFiltered ? "No job matches these filters" : "No jobs yet"}>
            {isFiltered ? <a href={hrefOf("jobs")}>Show all jobs</a> : <Command text={`holdfast enqueue NAME '{"input":1}'`} />}
          </Empty>
        )
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
              {plural(list.items.length, "job")}
              {list.hasMore ? " read so far, scroll for more" : ""}
              {isScan ? " · not live, as a search reads every job" : ""}
              {!isScan && list.items.length > MAX_LIVE ? ` · not live beyond ${count(MAX_LIVE)} rows` : ""}
            </div>
          }
        />
      )}
    </div>
  );

  function stateText(state: JobState): string {
    const isCounted = Object.keys(filters).every((name) => name === "state");
    const counted = isCounted ? overview.value.data?.counts[state] : undefined;
    return counted === undefined ? state : `${state} (${short(counted)})`;
  }
}

/** Changes every job that matches the filters, after counting them. */
function AllMatching({ filters }: { filters: Filters }) {
  const { state } = filters as { state?: JobState };
  const isAllowed = {
    retry: state === undefined || mayMove("retry", state),
    cancel: state === undefined || mayMove("cancel", state),
    remove: state === undefined || isFinished(state),
  };
  return (
    <>
      {ALL.map(({ verb, ...all }) =>
        isAllowed[verb] ? (
          <button
            type="button"
            class={verb === "retry" ? "button" : "button danger"}
            key={verb}
            onClick={() => void askForAll({ verb, ...all }, filters)}
          >
            {capitalized(verb)} all
          </button>
        ) : null,
      )}
    </>
  );
}

interface All {
  verb: "retry" | "cancel" | "remove";
  says: string;
  done: string;
}

const ALL: readonly All[] = [
  { verb: "retry", says: "Failed and quarantined ones become pending again, with their counts at zero.", done: "pending again" },
  { verb: "cancel", says: "Unfinished ones end as cancelled; handlers that run get the signal.", done: "cancelled" },
  { verb: "remove", says: "Finished ones are removed for good. Their ids stay taken.", done: "removed" },
];

async function askForAll({ verb, says, done }: All, filters: Filters): Promise<void> {
  const path = `jobs/${verb}-all`;
  const filter = filterOf(filters);
  try {
    const { matched } = await write<{ matched: number }>(path, { ...filter, dryRun: true });
    ask({
      title: `${capitalized(verb)} ${plural(matched, "job")}?`,
      body: (
        <p>
          {plural(matched, "job matches", "jobs match")} these filters now. {says}
        </p>
      ),
      verb: `${capitalized(verb)} ${plural(matched, "job")}`,
      isDangerous: verb !== "retry",
      fields: [{ name: "reason", label: "Reason", hint: "Stored in the audit", required: false }],
      command: () => [`holdfast jobs ${verb}`, ...flagsOf(filters), "--yes"].join(" "),
      run: async ({ reason = "" }) => {
        const { changed } = await write<{ changed: number }>(path, { ...filter, ...(reason === "" ? {} : { reason }) });
        return `${plural(changed, "job is", "jobs are")} ${done}.`;
      },
    });
  } catch (error) {
    notify((error as Error).message, "failed");
  }
}

function flagsOf(filters: Filters): string[] {
  return NAMES.flatMap((name) => {
    const value = filters[name];
    if (value === undefined) return [];
    return [`--${flagOf(name)} ${quoted(isTime(name) ? new Date(Number(value)).toISOString() : value)}`];
  });
}

/** As the API reads it from a body. */
function filterOf({ input, ...filters }: Filters): object {
  const pair = input === undefined ? null : parseInputPair(input);
  return {
    ...Object.fromEntries(Object.entries(filters).map(([name, value]) => [name, isTime(name) ? Number(value) : value])),
    ...(pair === null ? {} : { input: Object.fromEntries([pair]) }),
  };
}

/** An address may have been edited by hand. */
function isUsable(name: string, value = ""): boolean {
  if (isTime(name)) return /^\d{1,15}$/.test(value);
  return name === "input" ? parseInputPair(value) !== null : value !== "";
}

function isTime(name: string): boolean {
  return (TIMES as readonly string[]).includes(name);
}

function flagOf(name: string): string {
  return name.replace(/[A-Z]/, (letter) => `-${letter.toLowerCase()}`);
}

function capitalized(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** An instant as the browser's field for local times wants it. */
function localTime(millis: string | undefined): string {
  if (millis === undefined) return "";
  const at = Number(millis);
  return new Date(at - new Date(at).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function cellsOf(job: Job) {
  const { id, name, key, queue, state, attempt, crashes, createdAt, error, progress, tags = [] } = job;
  return [
    <Badge state={state} />,
    <div class="job-cell">
      <a class="row-link" href={hrefOf("jobs", {}, id)}>
        {name}
      </a>
      {tags.map((tag) => (
        <span class="tag" key={tag} title={tag}>
          {tag}
        </span>
      ))}
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

interface JobList {
  items: Job[] | null;
  error: ApiError | null;
  hasMore: boolean;
  more: () => void;
}

type Listed = Omit<JobList, "more"> & { next?: string | undefined };
const NOT_READ: Listed = { items: null, error: null, hasMore: false };

/** Pages of jobs, one behind the other. A commit makes it read as many rows again as it shows. */
function useJobs(query: string, isLive: boolean): JobList {
  const [list, setList] = useState<Listed>(NOT_READ);
  // What `list` will be at the next drawing: reads end in between.
  const newest = useRef(list);
  const reading = useRef<AbortController | null>(null);
  const isMoreDue = useRef(false);
  const put = (read: Listed) => {
    newest.current = read;
    setList(read);
  };
  const load = useCallback(
    async (after: string | undefined, limit: number): Promise<void> => {
      const abort = new AbortController();
      reading.current = abort;
      try {
        const found: Job[] = [];
        let next = after;
        // A search may come back with few jobs or none, and a cursor from which it continues.
        for (let slice = 0; slice < MAX_SLICES; slice++) {
          const path = apiPath("jobs", { ...(JSON.parse(query) as Filters), limit: String(limit - found.length), after: next });
          const page = await timedRead<Page<Job>>(path, abort.signal);
          found.push(...page.items);
          next = page.next;
          if (next === undefined || found.length >= limit) break;
        }
        if (abort.signal.aborted) return;
        const before = after === undefined ? [] : (newest.current.items ?? []);
        put({ items: [...before, ...found], error: null, hasMore: next !== undefined, next });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error instanceof ApiError) put({ ...newest.current, error });
      }
      reading.current = null;
      if (isMoreDue.current) more();
    },
    [query],
  );
  const more = () => {
    isMoreDue.current = reading.current !== null;
    const { next } = newest.current;
    if (!isMoreDue.current && next !== undefined) void load(next, PAGE);
  };
  useEffect(() => {
    put(NOT_READ);
    void load(undefined, PAGE);
    return () => reading.current?.abort();
  }, [load]);
  useBeat(
    useCallback(() => {
      const shown = newest.current.items?.length ?? 0;
      if (isLive && reading.current === null && shown <= MAX_LIVE) void load(undefined, Math.max(PAGE, shown));
    }, [load, isLive]),
  );
  return { ...list, more };
}
