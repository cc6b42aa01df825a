import { type Action, ask, mayOperate } from "../action.tsx";
import type { Manifest } from "../../../src/store/backups.ts";
import type { CrashRecoveryReport } from "../../../src/core/recovery/recovery-report.ts";
import { apiPath, write } from "../api.ts";
import { bytes, count, duration, plural } from "../format.ts";
import { useRead } from "../live.ts";
import { Badge, Command, Empty, Facts, Loaded, PageHead, Panel, Table, Time } from "../parts.tsx";
import { overview } from "../stats.ts";

interface Recovery {
  stats: { locksCleaned: number; entriesReclaimed: number; recoveryTimestamp: number; staleLocks: number; staleEntries: number };
  reports: CrashRecoveryReport[];
}

interface Finding {
  grade: string;
  area: string;
  message: string;
  mend: string | null;
}

/** A check reads every table. */
const CHECK_MS = 60_000;

const ACKNOWLEDGE: Action = {
  title: "Acknowledge the open reports?",
  body: <p>Reports with errors stand open, and raise an alarm, until an operator has seen them.</p>,
  verb: "Acknowledge",
  command: () => "holdfast recover --acknowledge",
  run: async () => {
    const { acknowledged } = await write<{ acknowledged: number }>("recovery/acknowledge");
    return `${plural(acknowledged, "report")} acknowledged.`;
  },
};

const BACK_UP: Action = {
  title: "Back up the database?",
  body: <p>It is copied into its backup folder while workers continue, and the copy is checked. SQLite only.</p>,
  verb: "Back up",
  command: () => "holdfast backup",
  run: async () => `The backup is at ${(await write<{ path: string }>("backups")).path}`,
};

export function RecoveryPage() {
  const recovery = useRead<Recovery>(apiPath("recovery"));
  const doctor = useRead<{ found: Finding[] }>(apiPath("doctor"), CHECK_MS);
  const backups = useRead<{ items: Backup[] }>(apiPath("backups"), CHECK_MS);
  const hasOpenReports = overview.value.data?.alarms.some(({ code }) => code === "RECOVERY_FAILED") ?? false;
  return (
    <>
      <PageHead
        title="Recovery"
        note={<Command text="holdfast recover --history" />}
        actions={
          mayOperate.value ? (
            <>
              {hasOpenReports ? (
                <button type="button" class="button" onClick={() => ask(ACKNOWLEDGE)}>
                  Acknowledge reports
                </button>
              ) : null}
              <button type="button" class="button" onClick={() => ask(BACK_UP)}>
                Back up now
              </button>
            </>
          ) : undefined
        }
      />
      <Loaded of={recovery} lines={6}>
        {({ stats, reports }) => (
          <>
            <Panel title="In all">
              <Facts
                of={[
                  ["Jobs reclaimed", plural(stats.entriesReclaimed, "job")],
                  ["Locks released", plural(stats.locksCleaned, "lock")],
                  ["Last reclaimed", <Time at={stats.recoveryTimestamp} none="never" />],
                  ["Stale jobs now", plural(stats.staleEntries, "job")],
                  ["Stale locks now", plural(stats.staleLocks, "lock")],
                ]}
              />
            </Panel>
            <Panel title="Crash reports" note={plural(reports.length, "report")} flush>
              {reports.length === 0 ? (
                <Empty title="No process has crashed">A process that ends without unregistering gets a report here.</Empty>
              ) : (
                <ul class="list">
                  {reports.map((report) => (
                    <Report report={report} key={report.recoveredAt} />
                  ))}
                </ul>
              )}
            </Panel>
          </>
        )}
      </Loaded>
      <Panel title="Backups" note={<Command text="holdfast backup" />} flush>
        <Loaded of={backups}>
          {({ items }) =>
            items.length === 0 ? (
              <Empty title="No backup beside the database">
                <code>open(path, {"{ backups: {} }"})</code> makes one a day. PostgreSQL has its own.
              </Empty>
            ) : (
              <Table label="Backups" head={["Taken", "File", "Size", "Jobs", "Made", "State"]}>
                {items.map(({ file, takenAt, size, jobs, reason, findings }) => (
                  <tr key={file}>
                    <td>
                      <Time at={takenAt} />
                    </td>
                    <th scope="row" title={file}>
                      {file}
                    </th>
                    <td>{bytes(size)}</td>
                    <td>{plural(jobs, "job")}</td>
                    <td>{MADE[reason]}</td>
                    <td>
                      <Badge state={findings.length === 0 ? "ok" : "error"} text={findings.length === 0 ? "whole" : "damaged"} />
                    </td>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Panel>
      <Panel title="Doctor" note={<Command text="holdfast doctor" />} flush>
        <Loaded of={doctor}>
          {({ found }) =>
            found.length === 0 ? (
              <Empty title="Nothing found">
                Settings, disk, log, locks, jobs and backups were checked. The command also checks pages, artifacts and the audit.
              </Empty>
            ) : (
              <Table label="Findings of the doctor" head={["Grade", "Area", "Finding", "Remedy"]}>
                {found.map(({ grade, area, message, mend }) => (
                  <tr key={message}>
                    <td>
                      <Badge state={grade} />
                    </td>
                    <td>{area}</td>
                    <td class="wrap">{message}</td>
                    <td>{mend === null ? <span class="muted">–</span> : isCommand(mend) ? <Command text={mend} /> : mend}</td>
                  </tr>
                ))}
              </Table>
            )
          }
        </Loaded>
      </Panel>
    </>
  );
}

type Backup = Pick<Manifest, "file" | "takenAt" | "size" | "jobs" | "reason" | "findings">;
const MADE: Record<Backup["reason"], string> = { asked: "by hand", scheduled: "on schedule", migration: "before a migration" };

function isCommand(text: string): boolean {
  return /^holdfast [a-z]+(?: [\w./:=-]+)*$/.test(text);
}

function Report({ report }: { report: CrashRecoveryReport }) {
  const { recoveredAt, wasSuccessful, crashed, errors, commitsMissing } = report;
  return (
    <li>
      <div class="line">
        <span class="strong">
          {crashed.length === 0 ? "No process" : plural(crashed.length, "process", "processes")} crashed,{" "}
          {plural(report.jobsRecovered, "job")} recovered
        </span>
        <Badge state={wasSuccessful ? "ok" : "error"} text={wasSuccessful ? "recovered" : "with errors"} />
      </div>
      {crashed.map(({ host, pid, program, startedAt }) => (
        <div class="muted" key={`${host} ${pid} ${startedAt}`}>
          <span class="mono">{program}</span>, pid {pid} on {host}, started <Time at={startedAt} />
        </div>
      ))}
      {errors.map((error) => (
        <div class="error-text" key={error}>
          {error}
        </div>
      ))}
      <Facts
        of={[
          ["Recovered", <Time at={recoveredAt} />],
          ["Took", duration(report.recoveryDurationMs)],
          ["Pending again", plural(report.jobsResetToPending, "job")],
          ["Quarantined", plural(report.jobsQuarantined, "job")],
          ["Builds crashed", plural(report.buildsCrashed, "build")],
          ["Locks released", plural(report.locksReleased, "lock")],
          ["Log", `${bytes(report.walSizeBeforeRecoveryBytes)}, ${count(report.walFramesReplayed)} frames replayed`],
          ["Commits missing", commitsMissing === null ? "unknown" : plural(commitsMissing, "commit")],
        ]}
      />
    </li>
  );
}
