import type { Fence, ProcessId } from "../../src/core/text/ids.ts";
import type { CleanedLocks, LockView } from "../../src/store/queues.ts";
import type { ModelJob } from "./model-job.ts";

interface ModelLock {
  name: string;
  holder: string;
  token: string;
  acquiredAt: number;
  /** Its own time, or the attempt that it lives and dies with. */
  bound: { ttl: number; expiresAt: number; process: ProcessId | null } | { job: ModelJob; fence: Fence };
}

/** Named mutexes: at most one living token each. */
export class ModelLocks {
  readonly #locks = new Map<string, ModelLock>();

  isHeld(name: string, at: number): boolean {
    const lock = this.#locks.get(name);
    return lock !== undefined && lives(lock, at);
  }

  /** Names and tokens there ever were a row for, ended or not. */
  all(): readonly ModelLock[] {
    return [...this.#locks.values()];
  }

  acquire(
    {
      name,
      holder,
      token,
      ttl,
      process,
    }: { name: string; holder: string; token: string; ttl: number; process: ProcessId | null },
    at: number,
  ): boolean {
    if (this.isHeld(name, at)) return false;
    this.#locks.set(name, { name, holder, token, acquiredAt: at, bound: { ttl, expiresAt: at + ttl, process } });
    return true;
  }

  bind(job: ModelJob, fence: Fence, holder: string, token: string, at: number): void {
    this.#locks.set(job.queue, { name: job.queue, holder, token, acquiredAt: at, bound: { job, fence } });
  }

  extend(
    { name, token, ttl, process }: { name: string; token: string; ttl: number; process: ProcessId | null },
    at: number,
  ): boolean {
    const lock = this.#own(name, token, at);
    if (lock === undefined) return false;
    lock.bound = { ttl, expiresAt: at + ttl, process };
    return true;
  }

  release(name: string, token: string, at: number): boolean {
    return this.#own(name, token, at) !== undefined && this.#locks.delete(name);
  }

  break(name: string): boolean {
    return this.#locks.delete(name);
  }

  /** The lock of an exclusive claim that was taken back. */
  freeBound(job: ModelJob, fence: Fence): string[] {
    const bound = this.all().filter(({ bound }) => "job" in bound && bound.job === job && bound.fence === fence);
    for (const { name } of bound) this.#locks.delete(name);
    return bound.map(({ name }) => name);
  }

  /** What a dead process has locked by name. */
  freeOf(process: ProcessId, at: number): string[] {
    const freed = this.all().filter((lock) => "ttl" in lock.bound && lock.bound.process === process && lives(lock, at));
    for (const { name } of freed) this.#locks.delete(name);
    return freed.map(({ name }) => name);
  }

  /** Sorted by name. */
  clean(at: number): CleanedLocks {
    const removed: string[] = [];
    const shortened: string[] = [];
    for (const lock of this.all()) {
      if (!lives(lock, at)) {
        this.#locks.delete(lock.name);
        removed.push(lock.name);
      } else if ("ttl" in lock.bound && lock.bound.expiresAt > at + lock.bound.ttl) {
        lock.bound.expiresAt = at + lock.bound.ttl;
        shortened.push(lock.name);
      }
    }
    return { removed: removed.toSorted(), shortened: shortened.toSorted() };
  }

  views(at: number): LockView[] {
    return this.all()
      .filter((lock) => "ttl" in lock.bound || lives(lock, at))
      .map((lock) => ({
        name: lock.name,
        holder: lock.holder,
        acquiredAt: lock.acquiredAt,
        expiresAt: "ttl" in lock.bound ? lock.bound.expiresAt : (lock.bound.job.lease?.expiresAt ?? 0),
        stale: !lives(lock, at),
      }))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** Only a lock with a time of its own is extended and released; the other kind goes with its claim. */
  #own(name: string, token: string, at: number): ModelLock | undefined {
    const lock = this.#locks.get(name);
    return lock?.token === token && "ttl" in lock.bound && lives(lock, at) ? lock : undefined;
  }
}

function lives({ bound }: ModelLock, at: number): boolean {
  return "ttl" in bound ? bound.expiresAt > at : bound.job.lease?.fence === bound.fence;
}
