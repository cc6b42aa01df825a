import { crc32 } from "node:zlib";
import { TARGET as COLUMNS, type TargetColumns } from "../../target-row.ts";

/** What a result's checksum covers: not its build, which changes when it is superseded. */
export interface SummedResult {
  pipeline: string;
  stage: string;
  path: string;
  target: string;
  state: string;
  hash: string;
  parts: string | null;
  output_hash: string;
  output_text: string | null;
  output_file: string | null;
  output_size: number;
  micros: number;
  tokens: number;
  error: string | null;
  at: number;
}

export const RESULT = `pipeline, stage, path, target, state, hash, parts, output_hash, output_text, output_file, output_size,
  micros, tokens, error, at`;

export function resultSum(row: SummedResult): number {
  const { pipeline, stage, path, target, state, hash, parts, output_hash, output_text, output_file, output_size } = row;
  const of = `${pipeline}\0${stage}\0${path}\0${target}\0${state}\0${hash}\0${parts}`;
  const output = `${output_hash}\0${unhashed(output_hash, output_text)}\0${output_file}\0${output_size}`;
  return crc32(`${of}\0${output}\0${row.micros}\0${row.tokens}\0${row.error}\0${row.at}`);
}

/** What a target's checksum covers. */
export interface SummedTarget extends TargetColumns {
  pipeline: string;
}

export const TARGET = `pipeline, ${COLUMNS}`;

/** Hundreds of targets are seen by one statement, which adds the difference: hence `seen` beside the checksum. */
export function targetSum(row: SummedTarget): number {
  const { pipeline, segment, path, id, parent, hash, fingerprint, value_hash, value_text, value_file, value_size } = row;
  const listed = `${pipeline}\0${segment}\0${path}\0${id}\0${parent}\0${hash}\0${fingerprint}`;
  const value = `${value_hash}\0${unhashed(value_hash, value_text)}\0${value_file}\0${value_size}`;
  const placed = `${row.done}\0${row.trail}\0${row.grouping}\0${row.member}\0${row.failure}\0${row.rev}`;
  return row.seen + crc32(`${listed}\0${value}\0${placed}`);
}

/** What never changes of a build. */
export interface SummedBuild {
  key: number;
  id: string;
  pipeline: string;
  queue: string;
  hash: string;
  description: string;
  options: string;
  max_failures: number | null;
  created_at: number;
}

export const BUILD = "key, id, pipeline, queue, hash, description, options, max_failures, created_at";

export function buildSum(row: SummedBuild): number {
  const { key, id, pipeline, queue, hash, description, options, max_failures, created_at } = row;
  return sumOf([key, id, pipeline, queue, hash, description, options, max_failures, created_at]);
}

/** Of an id that was given out. How its job ended is added to it when that is pruned. */
export function idSum(id: string, job: number, name: string, chosen: number): number {
  return sumOf([id, job, name, chosen]);
}

export function endedSum(state: string): number {
  return crc32(state);
}

export interface SummedCounter {
  rule: number;
  key: string;
  lane: number;
  running: number;
  passed: number;
  beyond: number;
  parked: number;
  lowest: number;
  last: number;
  bucket: number;
}

export const COUNTER = "rule, key, lane, running, passed, beyond, parked, lowest, last, bucket";

/** Of the counter of a limit, all that is in no index. */
export function counterSum({ rule, key, lane, running, passed, beyond, parked, lowest, last, bucket }: SummedCounter): number {
  return sumOf([rule, key, lane, running, passed, beyond, parked, lowest, last, bucket]);
}

/** A text whose own hash stands beside it is compared with that. */
function unhashed(hash: string, text: string | null): string | boolean {
  return text === null || (typeof hash === "string" && hash.startsWith("json:")) ? text === null : text;
}

/** One text of all: a call for each would cost more than all that is summed. A blob's bytes are no text. */
function sumOf(values: readonly (string | number | boolean | null)[]): number {
  return crc32(values.join("\0"));
}
