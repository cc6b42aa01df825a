import { RECOVERY, subjectOf } from "../../../core/audit.ts";
import type { BuildReason } from "../../../core/build.ts";
import type { ProcessId } from "../../../core/ids.ts";
import { brokenBy, tokenUse } from "../../build-moves.ts";
import type { Approval, BuildRow, MintedToken } from "../../builds.ts";
import type { Audit } from "../audit.ts";
import type { Events } from "../events.ts";
import type { Tx } from "../group-commit.ts";
import type { Leads } from "./leads.ts";
import type { Moves } from "./moves.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

/** What operators do to builds, and what is done about those whose orchestrators are gone: whatever the lock. */
export class Oversee {
  readonly #runs: Runs;
  readonly #leads: Leads;
  readonly #tokens: Tokens;
  readonly #moves: Moves;
  readonly #audit: Audit;
  readonly #events: Events;

  constructor(parts: { runs: Runs; leads: Leads; tokens: Tokens; moves: Moves; audit: Audit; events: Events }) {
    this.#runs = parts.runs;
    this.#leads = parts.leads;
    this.#tokens = parts.tokens;
    this.#moves = parts.moves;
    this.#audit = parts.audit;
    this.#events = parts.events;
  }

  abandon(tx: Tx, id: string, note: string, by: string): BuildRow | null {
    const build = this.#runs.find(id);
    return build && this.#moves.make(tx, build, { move: "abandon", reason: "abandoned", note }, {}, { by });
  }

  approve(tx: Tx, id: string, approval: Approval, by: string): BuildRow | null {
    const build = this.#runs.find(id);
    if (build === null) return null;
    const approved = this.#runs.approve(tx, build, this.#tokens.use(tx, build, approval));
    this.#moves.act(tx, "build.approved", build, approved, { by, ...tokenUse({ approval }) });
    return approved;
  }

  mintToken(tx: Tx, id: string, minted: MintedToken, by: string): BuildRow | null {
    const build = this.#runs.find(id);
    if (build === null) return null;
    const { expiresAt } = this.#tokens.mint(tx, build, minted);
    this.#moves.act(tx, "build.token_minted", build, build, { by, more: { expiresAt } });
    return build;
  }

  breakLead(tx: Tx, pipeline: string, by: string, only?: ProcessId): boolean {
    const lead = this.#leads.find(pipeline);
    if (lead === null || (only !== undefined && lead.holder !== only)) return false;
    const build = this.#runs.find(lead.build) as BuildRow;
    this.#audit.add(tx, { by, action: "lead.broken", subject: subjectOf("lead.broken", pipeline), before: lead, after: null });
    const { holder, pid, host, program } = lead;
    this.#events.act(tx, "lead.broken", pipeline, { pipeline, holder, pid, host, program, by }, build.id);
    this.#leads.release(tx, build.key);
    if (build.state === "ACTIVE") this.#moves.make(tx, build, brokenBy(by), { holderGone: true }, { by });
    return true;
  }

  /** Its orchestrator is dead. */
  crash(tx: Tx, holder: ProcessId, reason: BuildReason): BuildRow[] {
    return this.#leads
      .ledBy(holder)
      .map(({ key }) =>
        this.#moves.make(tx, this.#runs.get(key), { move: "crash", reason }, { holderGone: true }, { by: RECOVERY }),
      );
  }

  orphan(tx: Tx, known: { dead: readonly ProcessId[]; alive: readonly ProcessId[] }, reason: BuildReason): BuildRow[] {
    return this.#leads
      .unled(known, tx.now)
      .map((key) => this.#moves.make(tx, this.#runs.get(key), { move: "crash", reason }, { holderGone: true }, { by: RECOVERY }));
  }
}
