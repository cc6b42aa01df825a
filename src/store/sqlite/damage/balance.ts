import type { Connection } from "../driver.ts";

/**
 * Numbers that change all the time. A checksum would have to be made anew from all of a row; their plain total need not,
 * and no single bit can flip in any of them without changing it.
 */
export interface Balanced {
  table: string;
  /** What people know a row by. */
  kind: string;
  key: readonly string[];
  numbers: readonly string[];
}

export const BUILDS: Balanced = {
  table: "holdfast_builds",
  kind: "numbers of build",
  key: ["key"],
  numbers: [
    "seq",
    "budget_micros",
    "budget_tokens",
    "spent_micros",
    "spent_tokens",
    "reserved_micros",
    "reserved_tokens",
    "approved",
    "refused_micros",
    "refused_tokens",
    "round",
    "open",
    "failed",
    "finished_at",
  ],
};

/** Kept right by a trigger: few of their rows change in a commit, and in many places. */
export const TRIGGERED: readonly Balanced[] = [
  BUILDS,
  {
    table: "holdfast_build_stages",
    kind: "numbers of build and stage",
    key: ["build", "stage"],
    numbers: ["place", "ran", "cached", "failed", "passed", "open"],
  },
  {
    table: "holdfast_stage_costs",
    kind: "costs of pipeline and stage",
    key: ["pipeline", "stage"],
    numbers: ["attempts", "micros", "tokens"],
  },
  {
    table: "holdfast_work",
    kind: "costs of the work of job",
    key: ["job"],
    numbers: ["estimate_micros", "estimate_tokens", "cost_micros", "cost_tokens", "charged_micros", "charged_tokens"],
  },
];

/** Every commit writes it: it is kept right by those who write it. */
export const COUNTER: Balanced = {
  table: "holdfast_counter",
  kind: "the counter of commits",
  key: ["id"],
  numbers: ["commits", "jobs", "lanes", "settings", "writer"],
};

export const BALANCED: readonly Balanced[] = [...TRIGGERED, COUNTER];

/** What null counts as: not as a zero or a one, which SQLite spells in as few bits. */
export const NULL = 7;

export function totalOf({ numbers }: Pick<Balanced, "numbers">, row = ""): string {
  return numbers.map((name) => `coalesce(${row}${name}, ${NULL})`).join(" + ");
}

/** SQL that keeps a table's totals right whoever writes. */
export function keeper(balanced: Balanced): string {
  const { table, key, numbers } = balanced;
  const where = key.map((name) => `${name} = new.${name}`).join(" and ");
  return `create trigger ${table}_balance after update of ${numbers.join(", ")} on ${table} begin
  update ${table} set balance = ${totalOf(balanced, "new.")} where ${where};
end;`;
}

/** Where rows were changed behind the keepers' backs, on purpose. */
export function rebalance(db: Connection, where = "true"): void {
  for (const balanced of BALANCED) db.exec(`update ${balanced.table} set balance = ${totalOf(balanced)} where ${where}`);
}
