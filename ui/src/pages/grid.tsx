import { useState } from "preact/hooks";
import { ApiError, apiPath, read } from "../api.ts";
import { cost, count, type Money } from "../format.ts";
import { useRead } from "../live.ts";
import { Badge, Empty, notify, Panel } from "../parts.tsx";
import { hrefOf } from "../router.ts";
import { Rows } from "../rows.tsx";

interface Cell {
  state: "ran" | "cached" | "failed";
  cost: Money;
  at: number;
}

interface Row {
  path: string;
  target: string;
  cells: Record<string, Cell>;
}

interface GridPage {
  segments: string[][];
  segment: number;
  rows: Row[];
  next?: string;
}

const PAGE = "200";
const LIVE_MS = 2_000;
const TONES = { ran: "succeeded", cached: "pending", failed: "failed" } as const;

/** Every target of a build, and what each stage did for it. The first page is live; further ones are read while scrolling. */
export function Grid({ id }: { id: string }) {
  const [segment, setSegment] = useState(0);
  const base = `builds/${encodeURIComponent(id)}/grid`;
  const query = { segment: String(segment), limit: PAGE };
  const { data: first } = useRead<GridPage>(apiPath(base, query), LIVE_MS);
  const [more, setMore] = useState<Pick<GridPage, "rows" | "next"> | null>(null);
  const [isReading, setReading] = useState(false);
  if (first === null) return null;
  const stages = first.segments[segment] ?? [];
  const rows = [...new Map([...first.rows, ...(more?.rows ?? [])].map((row) => [row.path, row])).values()];
  const next = more === null ? first.next : more.next;
  const readMore = async () => {
    if (next === undefined || isReading) return;
    setReading(true);
    try {
      const page = await read<GridPage>(apiPath(base, { ...query, after: next }));
      setMore({ rows: [...(more?.rows ?? []), ...page.rows], ...(page.next === undefined ? {} : { next: page.next }) });
    } catch (error) {
      if (error instanceof ApiError) notify(error.message, "failed");
    }
    setReading(false);
  };
  const choose = (one: number) => {
    setMore(null);
    setSegment(one);
  };
  return (
    <Panel
      title="Targets"
      note={`${count(rows.length)} ${rows.length === 1 ? "target" : "targets"}${next === undefined ? "" : " so far"}`}
      flush
      actions={
        first.segments.length < 2 ? undefined : (
          <div class="segments" role="group" aria-label="Stages">
            {first.segments.map((of, i) => (
              <button type="button" key={i} aria-pressed={i === segment} onClick={() => choose(i)}>
                {of.join(", ")}
              </button>
            ))}
          </div>
        )
      }
    >
      {rows.length === 0 ? (
        <Empty title="No stage has a result yet" />
      ) : (
        <Rows
          name="grid"
          label="Targets by stages"
          items={rows}
          keyOf={({ path }) => path}
          head={["Target", ...stages]}
          columns={`minmax(120px, 1fr) repeat(${stages.length}, minmax(104px, 150px))`}
          cells={({ path, target, cells }) => [
            <span class="clip mono">{target}</span>,
            ...stages.map((stage) => {
              const cell = cells[stage];
              if (cell === undefined) return <span class="muted">–</span>;
              const spent = cell.cost.usd || cell.cost.tokens ? cost({ ...cell.cost, tokens: 0 }) : "";
              return (
                <a
                  class="cell"
                  href={hrefOf("builds", { stage, target, path }, id)}
                  aria-label={`${target}: ${stage} ${cell.state} ${spent}`}
                >
                  <Badge state={TONES[cell.state]} text={`${cell.state} ${spent}`} />
                </a>
              );
            }),
          ]}
          onEnd={() => void readMore()}
        />
      )}
    </Panel>
  );
}
