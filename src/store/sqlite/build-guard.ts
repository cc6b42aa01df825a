import { damagedRow } from "../../core/errors.ts";
import type { BuildColumns } from "../build-row.ts";
import type { BuildGuard } from "../sql/builds/runs.ts";
import { isIntact, rowChecksum } from "./checksum.ts";

/** A checksum of what never changes in a build's row. */
export const BUILD_GUARD: BuildGuard = {
  columns: ", checksum",
  check(row) {
    if (!isIntact("holdfast_builds", row as BuildColumns & { checksum: number | null })) throw damagedRow(`Build ${row.id}`);
  },
  inserted: {
    columns: ", checksum",
    values: ", :checksum",
    params: (row) => ({ checksum: rowChecksum("holdfast_builds", row) }),
  },
};
