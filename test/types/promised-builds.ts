import type * as holdfast from "../../src/index.ts";
import type { BuildState, Cost, Why } from "./promised-pipelines.ts";

/** What was promised of builds, to the letter; as properties, so that parameters are compared, too. */
export interface Build {
  id: string;
  pipeline: string;
  state: BuildState;
  reason: string;
  budget: Cost;
  spent: Required<Cost>;
  token?: string;
  createdAt: number;
  finishedAt?: number;
  stages: Record<string, { ran: number; cached: number; failed: number; left: number }>;
  errors: { stage: string; target: string; message: string }[];
}
export interface BuildOptions {
  budget?: Cost;
  concurrency?: number;
  maxFailures?: number;
  rerun?: string[];
  only?: string[];
  signal?: AbortSignal;
}
export interface BuildHandle<All = unknown> {
  readonly id: string;
  done: () => Promise<Build>;
  stop: () => Promise<Build>;
  progress: () => AsyncIterable<Build>;
  output: <N extends keyof All>(stage: N, target?: string) => Promise<All[N]>;
  outputs: <N extends keyof All>(stage: N) => AsyncIterable<{ target: string; output: All[N] }>;
}
export interface Plan {
  stages: Record<string, { run: number; cached: number; unknown: number; estimate: Cost }>;
  removed: number;
  estimate: Cost;
  warnings: string[];
}
export interface Page<T> {
  items: T[];
  next?: string;
}

export interface Builds {
  start: <T, I, O, All>(p: holdfast.Pipeline<T, I, O, All>, o?: BuildOptions) => Promise<BuildHandle<All>>;
  resume: <T, I, O, All>(
    p: holdfast.Pipeline<T, I, O, All>,
    id: string,
    o?: BuildOptions & { token?: string },
  ) => Promise<BuildHandle<All>>;
  watch: <T, I, O, All>(p: holdfast.Pipeline<T, I, O, All>, o?: BuildOptions) => AsyncIterable<Build>;
  plan: <T, I, O, All>(p: holdfast.Pipeline<T, I, O, All>, o?: BuildOptions) => Promise<Plan>;
  approve: (id: string, o: { token: string; budget: Cost }) => Promise<Build>;
  mintToken: (id: string) => Promise<string>;
  get: (id: string) => Promise<Build | null>;
  list: (o?: { pipeline?: string; state?: BuildState; limit?: number; after?: string }) => Promise<Page<Build>>;
  abandon: (id: string, reason: string) => Promise<Build>;
  why: (id: string, stage: string, target: string) => Promise<Why>;
  output: (id: string, stage: string, target?: string) => Promise<unknown>;
  export: (id: string, dir: string, o?: { stages?: string[] }) => Promise<string>;
}
