import type { ValueHash } from "../core/context-hash.ts";
import type { ResultKey } from "../core/ids.ts";
import type { JobError } from "../core/job.ts";
import type { KeptValue } from "../core/value.ts";
import type { ArtifactRef, StoredResult } from "./work.ts";

/** A result as it is read from whichever database; `build` is the build's id. */
export interface ResultColumns extends OutputColumns {
  key: ResultKey;
  build: string | null;
  stage: string;
  path: string;
  target: string;
  state: StoredResult["state"];
  hash: string;
  parts: string | null;
  micros: number;
  tokens: number;
  error: string | null;
  at: number;
}

export interface OutputColumns {
  output_hash: string;
  output_text: string | null;
  output_file: string | null;
  output_size: number;
}

export function toResult(row: ResultColumns): StoredResult {
  return {
    key: row.key,
    // One that was superseded in its build is of none.
    build: row.build ?? "",
    stage: row.stage,
    path: row.path,
    target: row.target,
    state: row.state,
    hash: row.hash,
    parts: row.parts,
    output: toOutput(row),
    cost: { micros: row.micros, tokens: row.tokens },
    error: row.error === null ? null : (JSON.parse(row.error) as JobError),
    at: row.at,
  };
}

export function toOutput(row: OutputColumns): KeptValue {
  return {
    hash: row.output_hash as ValueHash,
    text: row.output_text,
    artifact: row.output_file,
    size: row.output_size,
  };
}

/** Under this name, which no user can give, a result refers to the artifact that its output is kept in. */
export const OUTPUT = "";

/** As it is read from whichever database. */
export function toArtifactRef({ build, stage, path, name, hash, size }: ArtifactRef): ArtifactRef {
  return { build, stage, path, name, hash, size };
}

/** Where a page of a build's artifacts ended: what is given as `after` for the next. */
export function artifactCursor({ stage, path, name }: Pick<ArtifactRef, "stage" | "path" | "name">): string {
  return JSON.stringify([stage, path, name]);
}

export function parseArtifactCursor(cursor: string | undefined): [stage: string, path: string, name: string] {
  return cursor === undefined ? ["", "", ""] : (JSON.parse(cursor) as [string, string, string]);
}
