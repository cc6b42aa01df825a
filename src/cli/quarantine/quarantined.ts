import type { Holdfast } from "../../runtime/holdfast.ts";

const PAGE = 1_000;

/** All of them, read before the first is touched. */
export async function quarantinedIds(hf: Holdfast): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await hf.jobs.list({ state: "quarantined", limit: PAGE, after });
    ids.push(...page.items.map(({ id }) => id));
    after = page.next;
    if (after === undefined) return ids;
  }
}

export async function isQuarantined(hf: Holdfast, id: string): Promise<boolean> {
  return (await hf.jobs.get(id))?.state === "quarantined";
}
