import { bytes, number } from "../../core/words.ts";
import type { Progress } from "../../store/backups.ts";
import { Longer } from "./longer.ts";

/** With a word on how far it is, where it takes longer. */
export async function shown<T>(work: (tell: (progress: Progress) => void) => Promise<T>): Promise<T> {
  using longer = new Longer();
  return await work((progress) => longer.tell(sayProgress(progress)));
}

function sayProgress({ step, done, total }: Progress): string {
  if (step === "checking") return "checking …";
  const share = total === 0 ? 100 : Math.min(100, Math.floor((done / total) * 100));
  const of =
    step === "artifacts" || step === "replaying" ? `${number(done)} of ${number(total)}` : `${bytes(done)} of ${bytes(total)}`;
  return `${step} ${share} % (${of})`;
}
