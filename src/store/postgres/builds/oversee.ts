import { RECOVERY, subjectOf } from "../../../core/audit.ts";
import type { BuildReason } from "../../../core/build.ts";
import type { ProcessId } from "../../../core/ids.ts";
import { brokenBy, tokenUse } from "../../build-moves.ts";
import type { Approval, BuildRow, MintedToken } from "../../builds.ts";
import type { Audit } from "../audit.ts";
import type { Events } from "../events.ts";
import type { Tx } from "../transaction.ts";
import type { Known, Leads } from "./leads.ts";
import type { Moves } from "./moves.ts";
import type { Runs } from "./runs.ts";
import type { Tokens } from "./tokens.ts";

/** What operators do to builds, and what is done about those whose orchestrators are gone: whatever the lock, and in the turn of builds. */
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

  async abandon(tx: Tx, id: string, note: string, by: string): Promise<BuildRow | null> {
    const build = await this.#runs.lock(tx, id);
    return build && this.#moves.make(tx, build, { move: "abandon", reason: "abandoned", note }, {}, { by });
  }

  async approve(tx: Tx, id: string, approval: Approval, by: string): Promise<BuildRow | null> {
    const build = await this.#runs.lock(tx, id);
    if (build === null) return null;
    const approved = await this.#runs.approve(tx, build, await this.#tokens.use(tx, build, approval));
    await this.#moves.act(tx, "build.approved", build, approved, { by, ...tokenUse({ approval }) });
    return approved;
  }

  async mintToken(tx: Tx, id: string, minted: MintedToken, by: string): Promise<BuildRow | null> {
    const build = await this.#runs.lock(tx, id);
    if (build === null) return null;
    const { expiresAt } = await this.#tokens.mint(tx, build, minted);
    await this.#moves.act(tx, "build.token_minted", build, build, { by, more: { expiresAt } });
    return build;
  }

  async breakLead(tx: Tx, pipeline: string, by: string, only?: ProcessId): Promise<boolean> {
    const lead = await this.#leads.find(tx.rows, pipeline);
    if (lead === null || (only !== undefined && lead.holder !== only)) return false;
    const build = (await this.#runs.lock(tx, lead.build)) as BuildRow;
    await this.#audit.add(tx, {
      by,
      action: "lead.broken",
      subject: subjectOf("lead.broken", pipeline),
      before: lead,
      after: null,
    });
    const { holder, pid, host, program } = lead;
    await this.#events.act(tx, "lead.broken", pipeline, { pipeline, holder, pid, host, program, by }, build.id);
    await this.#leads.release(tx, build.key);
    if (build.state === "ACTIVE") await this.#moves.make(tx, build, brokenBy(by), { holderGone: true }, { by });
    return true;
  }

  /** Its orchestrator is dead. */
  async crash(tx: Tx, holder: ProcessId, reason: BuildReason): Promise<BuildRow[]> {
    const crashed: BuildRow[] = [];
    for (const { key } of await this.#leads.ledBy(tx.rows, holder)) {
      const build = await this.#runs.lockKey(tx, key);
      crashed.push(await this.#moves.make(tx, build, { move: "crash", reason }, { holderGone: true }, { by: RECOVERY }));
    }
    return crashed;
  }

  async orphan(tx: Tx, known: Known, reason: BuildReason): Promise<BuildRow[]> {
    const crashed: BuildRow[] = [];
    for (const key of await this.#leads.unled(tx.rows, tx.at, known)) {
      const build = await this.#runs.lockKey(tx, key);
      crashed.push(await this.#moves.make(tx, build, { move: "crash", reason }, { holderGone: true }, { by: RECOVERY }));
    }
    return crashed;
  }
}
