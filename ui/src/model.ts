import type { Build } from "../../src/core/pipelines/build-view.ts";
import type { FinishedState, Job, JobState } from "../../src/core/jobs/job.ts";

export type { Build, Job, JobState };

export interface Page<T> {
  items: T[];
  next?: string;
  incomplete?: string;
}

export type Counts = Record<JobState, number>;

export interface Queue {
  name: string;
  paused: boolean;
  counts: Counts;
  oldestAt?: number;
}

export interface WorkerProcess {
  pid: number;
  host: string;
  program: string;
  startedAt: number;
  life: "alive" | "dead" | "rebooted" | "unknown";
  works: { name: string; version: number; queue: string }[];
  running: number;
  stopping: boolean;
}

export interface Alarm {
  code: string;
  grave: boolean;
  message: string;
  hint: string;
}

export interface Overview {
  at: number;
  access: { role: "read" | "operate" | "approve"; user?: string };
  database: { path: string; id: string; durability: string };
  damaged: string | null;
  unreadable: string[];
  counts: Counts;
  queues: (Queue & { ended: number; lastMinute: Record<FinishedState, number> })[];
  processes: WorkerProcess[];
  builds: (Pick<Build, "id" | "pipeline" | "state" | "reason" | "budget" | "spent" | "createdAt"> & {
    left: number;
    failed: number;
    approved: boolean;
  })[];
  locks: { name: string; holder: string }[];
  wal: { bytes: number } | null;
  alarms: Alarm[];
}

export interface Schedule {
  key: string;
  job: string;
  cron: string;
  timezone: string;
  paused: boolean;
  lastAt?: number;
  nextAt: number;
  missed: "skip" | "once" | "all";
  overlap: boolean;
  nextRuns: number[];
}
