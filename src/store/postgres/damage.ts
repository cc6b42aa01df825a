import type { AuditHead } from "../../core/recovery/audit.ts";
import type { Checked, DamageStore, Finding, Thoroughness } from "../findings.ts";
import type { Rows } from "./connection/driver.ts";

/** Jobs in a state or behind a gate that there is not: the server lets everything in, since to look each time costs too much. */
export const misstated = (s: string): string => `
  select count(*) from ${s}.jobs
  where state not in ('pending', 'running', 'succeeded', 'failed', 'cancelled', 'quarantined', 'waiting')
    or (gate is not null and (state <> 'pending' or gate not in ('time', 'limit')))`;

/** A server looks after its own pages (`data_checksums`, `pg_amcheck`) and log; here only what Holdfast itself can tell. */
export class Damage implements DamageStore {
  readonly damaged = null;
  readonly incomplete = null;
  readonly opening = null;
  readonly #rows: Rows;
  readonly #schema: string;

  /** `schema` is quoted. */
  constructor(rows: Rows, schema: string) {
    this.#rows = rows;
    this.#schema = schema;
  }

  /** "quick": what has to be compared row by row is left out. */
  async check(how: Thoroughness): Promise<Checked> {
    const s = this.#schema;
    const other = (table: string, column: string) =>
      `select count(*) from ${s}.${table} where ${column}_text is not null and ${column}_hash like 'json:%'
         and ${column}_hash <> 'json:' || encode(sha256(convert_to(${column}_text, 'UTF8')), 'hex')`;
    const findings: string[] = [];
    const compared = [
      ["results", "output"],
      ["targets", "value"],
    ] as const;
    for (const [table, column] of how === "quick" ? [] : compared) {
      const n = await this.#count(other(table, column));
      if (n > 0) findings.push(`Not what was written: ${n} ${table}.`);
    }
    const unknown = how === "quick" ? 0 : await this.#count(misstated(s));
    if (unknown > 0) findings.push(`In a state that there is not: ${unknown} jobs.`);
    const artifacts = await this.#rows<[string]>(
      `select hash from ${s}.artifacts
       union select output_file from ${s}.results where output_file is not null
       union select value_file from ${s}.targets where value_file is not null`,
    );
    return { findings, artifacts: artifacts.map(([hash]) => hash), references: [], isComplete: how === "whole" };
  }

  async #count(text: string): Promise<number> {
    const [row] = await this.#rows<[string | number]>(text);
    return Number(row?.[0] ?? 0);
  }

  async findings(): Promise<Finding[]> {
    return [];
  }

  async reported(): Promise<void> {}

  async auditHeads(): Promise<AuditHead[]> {
    return [];
  }

  async clear(): Promise<null> {
    return null;
  }

  async commitsMissing(): Promise<null> {
    return null;
  }

  async recordCleared(): Promise<void> {}

  async confirmed(): Promise<void> {}

  refuse(): void {}

  claimRefusal(): null {
    return null;
  }

  lookAgain(): void {}

  onDamaged(): () => void {
    return () => {};
  }
}
