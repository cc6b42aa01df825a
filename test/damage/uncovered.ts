/**
 * Where a flipped bit may stay unnoticed, by table. docs/guarantees.md has the same list, and a test compares them;
 * whatever else differs after a flip has to be reported.
 */
export const UNCOVERED: Record<string, readonly string[]> = {
  holdfast_jobs: ["worker"],
  holdfast_tally: ["ended", "since", "fresh", "before"],
};

export function isUncovered(table: string, column: string): boolean {
  return UNCOVERED[table]?.includes(column) ?? false;
}
