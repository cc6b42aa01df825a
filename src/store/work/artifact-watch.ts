import { artifactMissing } from "../../core/pipelines/work.ts";
import { type ListedTarget, type NamedArtifact, type NewResult, OUTPUT, type WorkEnd } from "../work.ts";

/** Sees, inside transactions, that what is to be referenced is there. */
export class ArtifactWatch {
  #missing: (hashes: Iterable<string>) => readonly string[] = () => [];

  watch(missing: (hashes: Iterable<string>) => readonly string[]): void {
    this.#missing = missing;
  }

  /** Those of what a work item's end names that are not there. Asked inside the transaction, where nothing is swept meanwhile. */
  missingOf(end: WorkEnd): readonly string[] {
    const named = namedIn(end);
    return named.length === 0 ? [] : this.#missing(new Set(named.map(({ hash }) => hash)));
  }

  /** Of what a listing has found. */
  refuseMissing(targets: readonly ListedTarget[]): void {
    const hashes = new Set(targets.flatMap(({ artifacts }) => artifacts ?? []).map(({ hash }) => hash));
    const missing = hashes.size === 0 ? [] : this.#missing(hashes);
    if (missing.length > 0) throw artifactMissing(missing);
  }
}

/** All that a work item's end refers to. */
export function namedIn({ result, target }: WorkEnd): NamedArtifact[] {
  return [...(result === null ? [] : artifactsOf(result)), ...(target?.artifacts ?? [])];
}

/** All that a result refers to. */
export function artifactsOf({ output, artifacts }: NewResult): readonly NamedArtifact[] {
  if (output.artifact === null) return artifacts;
  return [{ name: OUTPUT, hash: output.artifact, size: output.size }, ...artifacts];
}
