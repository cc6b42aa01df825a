import { subjectOf } from "../../core/audit.ts";
import { NO_ENTRY } from "../../core/audit-chain.ts";
import type { Act, AuditCheck, AuditEntry, AuditHead, AuditQuery, AuditStore, AuditVerification } from "../audit.ts";
import type { Acts } from "./acts.ts";
import type { Audit } from "./audit.ts";
import type { Access } from "./access.ts";

/** The audit in a SQLite file. */
export class AuditLog implements AuditStore {
  readonly #audit: Audit;
  readonly #acts: Acts;
  readonly #access: Access;

  constructor(parts: { audit: Audit; acts: Acts }, access: Access) {
    this.#audit = parts.audit;
    this.#acts = parts.acts;
    this.#access = access;
  }

  page(query: AuditQuery): Promise<AuditEntry[]> {
    return this.#access.read(() => this.#audit.page(query));
  }

  head(): Promise<AuditHead> {
    return this.#access.read(() => this.#audit.head() ?? NO_ENTRY);
  }

  verify(query: AuditVerification): Promise<AuditCheck> {
    return this.#access.read(() => this.#audit.verify(query));
  }

  /** The same, where no entry has its subject yet. */
  recordOnce(act: Act): Promise<void> {
    return this.#access.write("audit", (tx) => {
      const subject = subjectOf(act.action, act.name);
      if (this.#audit.page({ after: 0, limit: 1, subject }).length === 0) this.#acts.add(tx, act);
    });
  }

  record(act: Act): Promise<void> {
    return this.#access.write("audit", (tx) => this.#acts.add(tx, act));
  }
}
