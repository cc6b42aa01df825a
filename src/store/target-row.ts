import type { ValueHash } from "../core/context-hash.ts";
import type { BuildKey, ResultKey } from "../core/ids.ts";
import { parseTrail } from "../core/trail.ts";
import type { TargetRow } from "./work.ts";

/** A target as it is read from whichever database. */
export interface TargetColumns {
  segment: number;
  path: string;
  id: string;
  parent: string | null;
  hash: string;
  fingerprint: string | null;
  value_hash: string;
  value_text: string | null;
  value_file: string | null;
  value_size: number;
  seen: number;
  done: string | null;
  trail: string;
  grouping: string | null;
  member: string | null;
  failure: number | null;
  rev: number;
}

export const TARGET = `segment, path, id, parent, hash, fingerprint, value_hash, value_text, value_file, value_size, seen, done,
  trail, grouping, member, failure, rev`;

export function toTarget(row: TargetColumns): TargetRow {
  return {
    segment: row.segment,
    path: row.path,
    id: row.id,
    parent: row.parent,
    hash: row.hash,
    fingerprint: row.fingerprint,
    value: { hash: row.value_hash as ValueHash, text: row.value_text, artifact: row.value_file, size: row.value_size },
    seen: row.seen as BuildKey,
    done: row.done,
    trail: parseTrail(row.trail),
    group: row.grouping,
    member: row.member,
    failure: row.failure as ResultKey | null,
    rev: row.rev,
  };
}
