import type { Readable } from "node:stream";
import type { JobContext, RunOptions } from "./promised.ts";

/**
 * The part of the promise that is about pipelines. It is not among the public names yet; `pipelines.test.ts` compares it
 * with what there is in core.
 */

export interface Target {
  readonly id: string;
  readonly hash: string;
  readonly parent?: Target;
}
export interface FileTarget extends Target {
  readonly path: string;
  readonly size: number;
  bytes(): Promise<Uint8Array>;
  stream(): Readable;
}
export interface Source<T extends Target, In> {
  readonly types?: { target: T; input: In };
}
export type Files = (
  globs: string | string[],
  o?: { root?: string; ignore?: string[]; snapshot?: boolean },
) => Source<FileTarget, undefined>;
export type Items = <V>(
  list: (cursor?: string) => Iterable<V> | AsyncIterable<V>,
  o: { id: (v: V) => string; version?: (v: V) => string; cursor?: (v: V) => string },
) => Source<Target, V>;
export type Secret = <T>(value: T) => T;

export interface Cost {
  usd?: number;
  tokens?: number;
}
export interface StageOptions<T, In> extends RunOptions<In> {
  key?: string | number | object | ((c: { target: T; input: In }) => string | number | object);
  estimate?: Cost | ((c: { target: T; input: In }) => Cost);
  reuse?: "target" | "bytes";
  isolate?: "none" | "process";
  remove?: (c: { target: Target; output: unknown; idempotencyKey: string; signal: AbortSignal }) => void | Promise<void>;
}
export interface StageContext<T, In, Outs> extends JobContext<In> {
  target: T;
  outputs: Outs;
  cost(c: Cost): void;
  artifact(
    name: string,
    data: Uint8Array | string | Readable | { path: string },
  ): Promise<{ name: string; hash: string; size: number }>;
}
type Run<C, Out> = (c: C) => Out | Promise<Out>;
export interface Pipeline<T = unknown, In = unknown, Outs = unknown, All = unknown> {
  readonly name: string;
  readonly types?: { target: T; input: In; outs: Outs; all: All };
  stage<const N extends string, M extends In, Out, U extends keyof Outs = never>(
    name: N,
    o: StageOptions<T, M> & { uses?: U[]; match: (target: T, input: In) => input is M },
    run: Run<StageContext<T, M, Pick<Outs, U>>, Out>,
  ): Pipeline<T, Exclude<In, M> | Out, Outs & { [K in N]?: Out }, All & Record<N, Out>>;
  stage<const N extends string, Out, U extends keyof Outs = never>(
    name: N,
    o: StageOptions<T, In> & { uses?: U[]; match: string | ((target: T, input: In) => boolean) },
    run: Run<StageContext<T, In, Pick<Outs, U>>, Out>,
  ): Pipeline<T, In | Out, Outs & { [K in N]?: Out }, All & Record<N, Out>>;
  stage<const N extends string, Out, U extends keyof Outs = never>(
    name: N,
    o: StageOptions<T, In> & { uses?: U[] },
    run: Run<StageContext<T, In, Pick<Outs, U>>, Out>,
  ): Pipeline<T, Out, Outs & Record<N, Out>, All & Record<N, Out>>;
  expand<const N extends string, V>(
    name: N,
    o: StageOptions<T, In>,
    run: Run<StageContext<T, In, {}>, Iterable<{ id: string; value: V }> | AsyncIterable<{ id: string; value: V }>>,
  ): Pipeline<Target & { parent: T }, V, Outs, All & Record<N, V>>;
  gather<const N extends string, Out>(
    name: N,
    o: StageOptions<Target, undefined> & { by?: (target: T, output: In) => string; partial?: boolean },
    run: Run<
      StageContext<Target, undefined, {}> & {
        inputs: AsyncIterable<{ target: T; output: In; outputs: Outs }>;
        failed: number;
      },
      Out
    >,
  ): Pipeline<Target, Out, Record<N, Out>, All & Record<N, Out>>;
}
export type MakePipeline = (
  name: string,
  o?: { budget?: Cost; maxFailures?: number; module?: string },
) => { source<T extends Target, In>(s: Source<T, In>): Pipeline<T, In, {}, {}> };

export type BuildState = "PENDING" | "ACTIVE" | "SUCCESS" | "FAILED" | "CRASHED" | "BUDGET_PAUSE" | "ABANDONED";
export interface Why {
  ran: boolean;
  reason: string;
  parts: { part: string; before: unknown; after: unknown }[];
}
