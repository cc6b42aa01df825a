import { useState } from "preact/hooks";
import type { ApiError } from "../api.ts";
import { apiPath, write } from "../api.ts";
import { count, plural, quoted } from "../format.ts";
import { useRead } from "../live.ts";
import { Command, Empty, Failed, FilterText, Loaded, PageHead, Panel, Table, Time } from "../parts.tsx";
import { address, hrefOf, setQuery } from "../router.ts";

interface Entry {
  seq: number;
  at: number;
  by: string;
  action: string;
  subject: string;
  before: unknown;
  after: unknown;
}

interface Verdict {
  ok: boolean;
  entries: number;
  head: { seq: number; hash: string };
  fault: { message: string } | null;
}

const PAGE = 100;

export function AuditPage() {
  const { subject = "", before } = address.value.query;
  const reading = useRead<{ items: Entry[] }>(apiPath("audit", { subject, before, limit: String(PAGE) }));
  const [verdict, setVerdict] = useState<Verdict | ApiError | "checking" | null>(null);
  const verify = () => {
    setVerdict("checking");
    write<Verdict>("audit/verify").then(setVerdict, setVerdict);
  };
  return (
    <>
      <PageHead
        title="Audit"
        note={<Command text={`holdfast audit${subject === "" ? "" : ` --subject ${quoted(subject)}`}`} />}
        actions={
          <button type="button" class="button" disabled={verdict === "checking"} onClick={verify}>
            Verify the chain
          </button>
        }
      />
      {verdict === null ? null : <Verified verdict={verdict} />}
      <search class="filters">
        <FilterText
          label="Subject, such as job:ID or queue:mail"
          value={subject}
          onChange={(given) => setQuery({ subject: given, before: "" })}
        />
      </search>
      <Loaded of={reading} lines={8}>
        {({ items }) =>
          items.length === 0 ? (
            <Empty title={subject === "" ? "No entries yet" : "Nothing was done to this subject"}>
              What operators, recovery and builds do is written here, in a chain of hashes.
            </Empty>
          ) : (
            <Panel
              title="The newest first"
              note={plural(items.length, "entry", "entries")}
              flush
              actions={
                <>
                  {before === undefined ? null : (
                    <a class="button" href={hrefOf("audit", { subject })}>
                      Newest
                    </a>
                  )}
                  {items.length < PAGE ? null : (
                    <a class="button" href={hrefOf("audit", { subject, before: String(items.at(-1)?.seq) })}>
                      Older
                    </a>
                  )}
                </>
              }
            >
              <Table label="Audit entries" head={["Number", "When", "Action", "Subject", "Change", "By"]}>
                {items.map(({ seq, at, by, action, subject: of, before: was, after }) => (
                  <tr key={seq}>
                    <td class="muted">#{count(seq)}</td>
                    <td>
                      <Time at={at} />
                    </td>
                    <th scope="row">{action}</th>
                    <td class="wrap mono">
                      <a href={hrefOf("audit", { subject: of })}>{of}</a>
                    </td>
                    <td class="wrap">
                      <Change before={was} after={after} />
                    </td>
                    <td class="wrap muted">{by}</td>
                  </tr>
                ))}
              </Table>
            </Panel>
          )
        }
      </Loaded>
    </>
  );
}

/** Only what differs. */
function Change({ before, after }: { before: unknown; after: unknown }) {
  if (!isRecord(after) || (before !== null && before !== undefined && !isRecord(before))) {
    return <span class="mono">{after === null || after === undefined ? "–" : JSON.stringify(after)}</span>;
  }
  const was = isRecord(before) ? before : {};
  const names = [...new Set([...Object.keys(was), ...Object.keys(after)])];
  const changed = names.filter((name) => JSON.stringify(was[name]) !== JSON.stringify(after[name]));
  return (
    <>
      {changed.map((name) => (
        <div class="mono" key={name}>
          <span class="muted">{name}</span> {name in was ? `${JSON.stringify(was[name])} → ` : ""}
          {JSON.stringify(after[name]) ?? "–"}
        </div>
      ))}
    </>
  );
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function Verified({ verdict }: { verdict: Verdict | ApiError | "checking" }) {
  if (verdict === "checking")
    return (
      <p class="muted" role="status">
        Checking every entry…
      </p>
    );
  if (verdict instanceof Error) return <Failed error={verdict} />;
  const { ok, entries, head, fault } = verdict;
  return (
    <div class={`callout ${ok ? "tone-green" : "tone-red"}`} role="status">
      <strong>{ok ? `Verified: ${plural(entries, "entry", "entries")}.` : "The chain is broken."}</strong>{" "}
      {fault === null ? "Each follows from the one before it, and none is missing at the end." : fault.message}
      <Command text={`holdfast audit verify --head ${head.seq}:${head.hash}`} />
    </div>
  );
}
