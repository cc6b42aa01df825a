import { hasEnded } from "../../core/build.ts";
import type { Build } from "../../core/build-view.ts";
import type { LeadView } from "../../store/builds.ts";
import type { Life, ProcessView } from "../../store/processes.ts";
import { bootId } from "../boot.ts";
import type { Holdfast } from "../holdfast.ts";

/** A build that has not ended, and who leads it. */
export interface OpenBuild extends Pick<Build, "id" | "pipeline" | "state" | "reason" | "budget" | "spent" | "createdAt"> {
  /** Pieces of work that have yet to run, as far as they are known. */
  left: number;
  failed: number;
  /** A budget was approved, and the next run goes on. */
  approved: boolean;
  lead: { pid: number; host: string; program: string; programHash: string; beatAt: number; life: Life | "gone" } | null;
}

/** More are nobody's at a glance. */
const MOST = 150;

export async function openBuilds(hf: Holdfast): Promise<OpenBuild[]> {
  const { builds } = hf.engine.store;
  const [leads, probed, newest] = await Promise.all([
    builds.leads(),
    hf.engine.store.processes.probe(bootId()),
    builds.newestBuilds(),
  ]);
  const unended = newest.filter(({ state }) => !hasEnded(state)).toSorted((a, b) => a.key - b.key);
  return Promise.all(
    unended.slice(0, MOST).map(async ({ id, approved }): Promise<OpenBuild> => {
      const build = (await hf.builds.get(id)) as Build;
      const lead = leads.find((one) => one.build === id);
      const { pipeline, state, reason, budget, spent, createdAt, stages } = build;
      const total = (of: "left" | "failed") => Object.values(stages).reduce((sum, stage) => sum + stage[of], 0);
      return {
        id,
        pipeline,
        state,
        reason,
        budget,
        spent,
        createdAt,
        approved,
        left: total("left"),
        failed: total("failed"),
        lead: lead === undefined ? null : leadOf(lead, probed),
      };
    }),
  );
}

function leadOf(
  { holder, pid, host, program, programHash, beatAt }: LeadView,
  probed: readonly { process: ProcessView; life: Life }[],
): OpenBuild["lead"] {
  const life = probed.find(({ process }) => process.id === holder)?.life ?? "gone";
  return { pid, host, program, programHash, beatAt, life };
}

/** It says that it is being built, and nobody does: the next run finds that out. */
export function isLeft({ state, lead }: OpenBuild): boolean {
  return state === "ACTIVE" && lead?.life !== "alive" && lead?.life !== "unknown";
}
