import { useEffect, useState } from "preact/hooks";
import { EVENT_TYPES } from "../../../src/core/jobs/event-types.ts";
import type { Event as StoredEvent } from "../../../src/core/jobs/event.ts";
import { ApiError, apiPath, read } from "../api.ts";
import { count, plural, quoted } from "../format.ts";
import { connection } from "../live.ts";
import { Badge, Command, Empty, Failed, FilterText, Loading, PageHead, Time } from "../parts.tsx";
import { Rows } from "../rows.tsx";
import { address, hrefOf, setQuery } from "../router.ts";

const FIRST = 200;
const KEPT = 2_000;

/** The newest events, and each new one as it is committed. */
export function EventsPage() {
  const { types = "" } = address.value.query;
  const [isPaused, setPaused] = useState(false);
  const { events, error } = useEvents(types, isPaused);
  const flags = types === "" ? "" : ` --type ${quoted(types)}`;
  return (
    <div class="full">
      <PageHead
        title="Events"
        note={<Command text={`holdfast events --follow${flags}`} />}
        actions={
          <button type="button" class="button" aria-pressed={isPaused} onClick={() => setPaused(!isPaused)}>
            {isPaused ? "Follow" : "Pause"}
          </button>
        }
      />
      <search class="filters">
        <FilterText label="Type, such as job.*" value={types} onChange={(given) => setQuery({ types: given })} />
      </search>
      {events === null ? (
        error === null ? (
          <Loading lines={12} />
        ) : (
          <Failed error={error} />
        )
      ) : events.length === 0 ? (
        <Empty title={types === "" ? "No events yet" : "No event of this type"}>
          Finished events are removed once every sink and subscriber has received them.
        </Empty>
      ) : (
        <Rows
          name="events"
          label="Events"
          head={["Number", "Type", "About", "Data", "When"]}
          items={events}
          keyOf={({ seq }) => String(seq)}
          cells={cellsOf}
          foot={
            <div class="rows-foot muted" role="status">
              {plural(events.length, "event")}, the newest first{isPaused ? " · paused" : ""}
            </div>
          }
        />
      )}
    </div>
  );
}

function cellsOf({ seq, type, job, build, data, at }: StoredEvent) {
  const text = JSON.stringify(data);
  return [
    <span class="muted">#{count(seq)}</span>,
    <Badge state={type.split(".").at(-1) ?? ""} text={type} />,
    job !== undefined ? (
      <a class="row-link mono" href={hrefOf("jobs", {}, job)}>
        {job}
      </a>
    ) : build !== undefined ? (
      <a class="row-link mono" href={hrefOf("builds", {}, build)}>
        {build}
      </a>
    ) : (
      <span class="muted">–</span>
    ),
    <span class="mono muted" title={text}>
      {text}
    </span>,
    <Time at={at} />,
  ];
}

function useEvents(types: string, isPaused: boolean): { events: StoredEvent[] | null; error: ApiError | null } {
  const [events, setEvents] = useState<StoredEvent[] | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const isHidden = connection.value === "paused";
  useEffect(() => {
    if (isPaused || isHidden) return;
    const ended = new AbortController();
    let source: EventSource | null = null;
    let waiting: StoredEvent[] = [];
    let timer = 0;
    const add = () => {
      timer = 0;
      const added = waiting.toReversed();
      waiting = [];
      setEvents((before) => [...added, ...(before ?? [])].slice(0, KEPT));
    };
    const onEvent = (message: MessageEvent<string>) => {
      waiting.push(JSON.parse(message.data) as StoredEvent);
      // A burst is drawn once.
      timer ||= window.setTimeout(add, 250);
    };
    const start = async () => {
      const query = types === "" ? {} : { types };
      const { newest } = await read<{ newest: number }>(apiPath("events", { ...query, limit: "1" }), ended.signal);
      // Numbers have gaps where events were removed or are of other types, so a longer stretch is read than is shown.
      const after = Math.max(0, newest - (types === "" ? FIRST : FIRST * 5));
      const { items } = await read<{ items: StoredEvent[] }>(
        apiPath("events", { ...query, after: String(after), limit: "1000" }),
        ended.signal,
      );
      setEvents(items.toReversed());
      setError(null);
      source = new EventSource(apiPath("events/stream", { ...query, after: String(items.at(-1)?.seq ?? newest) }));
      for (const type of EVENT_TYPES) source.addEventListener(type, onEvent);
    };
    start().catch((cause: unknown) => {
      if (cause instanceof ApiError) setError(cause);
    });
    return () => {
      ended.abort();
      source?.close();
      clearTimeout(timer);
    };
  }, [types, isPaused, isHidden]);
  return { events, error };
}
