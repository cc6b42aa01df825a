import { RECOVERY, subjectOf } from "../../../core/recovery/audit.ts";
import type { BuildReason } from "../../../core/pipelines/build.ts";
import type { BuildKey, ProcessId } from "../../../core/text/ids.ts";
import { type Approval, brokenBy, type BuildRow, type MintedToken, tokenUse } from "../../builds.ts";
import type { KnownProcesses } from "../../processes.ts";
import { type Events, type Script, type Tx, wait } from "../script.ts";
import type { Audit } from "../audit.ts";
import type { RecoveryLog } from "../reports.ts";
import type { OrchestratorLocks } from "./orchestrator-locks.ts";
import type { Moves } from "./moves.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

interface Parts {
  runs: Runs;
  leads: OrchestratorLocks;
  tokens: Tokens;
  moves: Moves;
  audit: Audit;
  events: Events;
  recoveryLog: RecoveryLog;
}

/** What operators do to builds, and what happens to builds whose orchestrators are gone. None of it needs the lead. */
export class Oversee {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  *abandon(tx: Tx, id: string, note: string, by: string): Script<BuildRow | null> {
    const { runs, moves } = this.#parts;
    const build = yield* runs.lock(tx, id);
    return build && (yield* moves.make(tx, build, { move: "abandon", reason: "abandoned", note }, {}, { by }));
  }

  *approve(tx: Tx, id: string, approval: Approval, by: string): Script<BuildRow | null> {
    const { runs, tokens, moves } = this.#parts;
    const build = yield* runs.lock(tx, id);
    if (build === null) return null;
    const approved = yield* runs.approve(tx, build, yield* tokens.use(tx, build, approval));
    yield* moves.act(tx, "build.approved", build, approved, { by, ...tokenUse({ approval }) });
    return approved;
  }

  *mintToken(tx: Tx, id: string, minted: MintedToken, by: string): Script<BuildRow | null> {
    const { runs, tokens, moves } = this.#parts;
    const build = yield* runs.lock(tx, id);
    if (build === null) return null;
    const { expiresAt } = yield* tokens.mint(tx, build, minted);
    yield* moves.act(tx, "build.token_minted", build, build, { by, more: { expiresAt } });
    return build;
  }

  *breakLead(tx: Tx, pipeline: string, by: string, only?: ProcessId): Script<boolean> {
    const { runs, leads, moves, audit, events } = this.#parts;
    const lead = yield* leads.find(tx, pipeline);
    if (lead === null || (only !== undefined && lead.holder !== only)) return false;
    const build = (yield* runs.lock(tx, lead.build)) as BuildRow;
    const subject = subjectOf("lead.broken", pipeline);
    yield* audit.add(tx, { by, action: "lead.broken", subject, before: lead, after: null });
    const { holder, pid, host, program } = lead;
    yield* wait(events.act(tx, "lead.broken", pipeline, { pipeline, holder, pid, host, program, by }, build.id));
    yield* leads.release(tx, build.key);
    if (build.state === "ACTIVE") yield* moves.make(tx, build, brokenBy(by), { holderGone: true }, { by });
    return true;
  }

  /** Its orchestrator is dead. `recovery`: the report of that, for the audit. */
  *crash(tx: Tx, holder: ProcessId, reason: BuildReason, recovery: number): Script<BuildRow[]> {
    const led = yield* this.#parts.leads.orchestratedBy(tx, holder);
    return yield* this.#crash(tx, led, reason, { recovery });
  }

  *orphan(tx: Tx, known: KnownProcesses, reason: BuildReason): Script<BuildRow[]> {
    const left = yield* this.#parts.leads.withoutOrchestrator(tx, known);
    const crashed = yield* this.#crash(tx, left, reason);
    const locks = left.flatMap(({ lock }) => lock ?? []);
    if (locks.length === 0) return crashed;
    const cause = `no orchestrator was heard of: ${locks.join(", ")}`;
    yield* this.#parts.recoveryLog.record(tx, cause, { entries: 0, quarantined: 0, failed: 0, locks: locks.length });
    return crashed;
  }

  *#crash(tx: Tx, builds: readonly { key: BuildKey }[], reason: BuildReason, more: object = {}): Script<BuildRow[]> {
    const { runs, moves } = this.#parts;
    const crashed: BuildRow[] = [];
    for (const { key } of builds) {
      const build = yield* runs.lockKey(tx, key);
      crashed.push(yield* moves.make(tx, build, { move: "crash", reason }, { holderGone: true }, { by: RECOVERY, more }));
    }
    return crashed;
  }
}
