import { damagedRow } from "../../core/errors.ts";
import type { BuildColumns } from "../build-row.ts";
import type { BuildGuard } from "../sql/builds/runs.ts";
import { BUILDS, NULL, totalOf } from "./damage/balance.ts";
import { buildSum } from "./damage/sums.ts";

/** A checksum of what never changes in a build's row, and a total of the numbers that do. */
export const BUILD_GUARD: BuildGuard = {
  columns: `, sum, balance = ${totalOf(BUILDS)} as balanced`,
  check(row) {
    const { sum, balanced } = row as BuildColumns & { sum: number | null; balanced: 0 | 1 };
    if (sum !== buildSum(row) || balanced !== 1) throw damagedRow(`Build ${row.id}`);
  },
  inserted: {
    columns: ", sum, balance",
    values: `, :sum, coalesce(:micros, ${NULL}) + coalesce(:tokens, ${NULL}) + ${NULL}`,
    params: (row) => ({ sum: buildSum(row) }),
  },
  insertedStage: { columns: ", balance", values: ", place" },
};
